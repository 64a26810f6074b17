"""Stage 5: the trained parts become one diffusers folder in half precision, which stock diffusers loads and
runs.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from diffusers import DiffusionPipeline, UniPCMultistepScheduler, WanPipeline

from training.flipbook.distill import DistillTrainer
from training.flipbook.flow import SHIFT, Painter
from training.flipbook.networks import Sizes
from training.flipbook.train_transformer import FlowTrainer
from training.flipbook.train_vae import load_vae
from training.flipbook.words import build_tokenizer
from training.flipbook.workshop import Workshop

MOST_BYTES = 40_000_000


def build_scheduler() -> UniPCMultistepScheduler:
    """The solver Wan ships with; its second order is what makes ten steps enough."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT, num_train_timesteps=1000
    )


def assemble(workshop: Workshop, sizes: Sizes, checkpoint: str) -> WanPipeline:
    """The pipeline of a checkpoint's averaged weights."""
    painter = Painter(sizes, workshop.device)
    painter.load_state_dict(workshop.require(checkpoint)["average"])
    painter.freeze()
    return WanPipeline(
        tokenizer=build_tokenizer(),
        text_encoder=painter.text_encoder,
        vae=load_vae(workshop),
        scheduler=build_scheduler(),
        transformer=painter.transformer,
    )


def export(pipeline: WanPipeline, folder: Path) -> int:
    """Write the folder; returns the bytes of its weights."""
    shutil.rmtree(folder, ignore_errors=True)
    for part in (pipeline.text_encoder, pipeline.transformer, pipeline.vae):
        part.to("cpu").half()
    pipeline.save_pretrained(folder)
    _mend(folder / "model_index.json", tokenizer=["transformers", "PreTrainedTokenizerFast"])
    # Stored in half precision but run in full unless asked otherwise, as diffusers does with the others.
    _mend(folder / "text_encoder" / "config.json", dtype="float32")
    _mend(folder / "vae" / "config.json")
    weights = list(folder.rglob("*.safetensors"))
    for path in weights:
        path.chmod(0o644)
    return sum(path.stat().st_size for path in weights)


def _mend(path: Path, **values: object) -> None:
    """Set values, and forget the path the part was once loaded from."""
    config = {**json.loads(path.read_text()), **values}
    config.pop("_name_or_path", None)
    path.write_text(json.dumps(config, indent=2) + "\n")


def check_folder(folder: Path) -> None:
    """Load the folder the way a user would and run the default call for a few frames."""
    pipeline = DiffusionPipeline.from_pretrained(folder, local_files_only=True)
    assert isinstance(pipeline, WanPipeline)
    pipeline.set_progress_bar_config(disable=True)
    frames = pipeline(
        "a red ball bounces on the grass",
        width=64,
        height=64,
        num_frames=5,
        num_inference_steps=2,
        guidance_scale=1.0,
        generator=torch.Generator().manual_seed(0),
    ).frames
    assert frames.shape == (1, 5, 64, 64, 3), frames.shape


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument("--out", type=Path, help="default: the folder `model` in the work folder")
    parser.add_argument("--undistilled", action="store_true", help="export stage 3 instead of stage 4")
    options = parser.parse_args()
    workshop = Workshop.open(options.work)
    folder = options.out or options.work / "model"
    trainer = FlowTrainer if options.undistilled else DistillTrainer
    size = export(assemble(workshop, Sizes(), trainer.checkpoint), folder)
    assert size <= MOST_BYTES, f"{size} bytes of weights are more than the package may carry"
    check_folder(folder)
    workshop.log("export", megabytes=size / 1e6, folder=str(folder))


if __name__ == "__main__":
    main()
