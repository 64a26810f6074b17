"""Stage 5: exports the trained networks as a diffusers folder in half precision, and runs it once."""

import argparse
import json
import shutil
from pathlib import Path

import torch
from diffusers import DiffusionPipeline, UniPCMultistepScheduler, WanPipeline

from training.flipbook.distill import DistillTrainer
from training.flipbook.flow import SHIFT, Denoiser
from training.flipbook.networks import Sizes
from training.flipbook.tokenizer import build_tokenizer
from training.flipbook.train_transformer import FlowTrainer
from training.flipbook.train_vae import load_vae
from training.flipbook.training_run import TrainingRun

MAX_BYTES = 40_000_000


def build_scheduler() -> UniPCMultistepScheduler:
    """The solver that Wan ships with. It is of second order, so ten steps are enough."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT, num_train_timesteps=1000
    )


def assemble(run: TrainingRun, sizes: Sizes, checkpoint: str) -> WanPipeline:
    """The pipeline with the averaged weights of a checkpoint."""
    denoiser = Denoiser(sizes, run.device)
    denoiser.load_state_dict(run.require(checkpoint)["average"])
    denoiser.freeze()
    return WanPipeline(
        tokenizer=build_tokenizer(),
        text_encoder=denoiser.text_encoder,
        vae=load_vae(run),
        scheduler=build_scheduler(),
        transformer=denoiser.transformer,
    )


def export(pipeline: WanPipeline, folder: Path) -> int:
    """Write the folder and return the size of its weights in bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    for part in (pipeline.text_encoder, pipeline.transformer, pipeline.vae):
        part.to("cpu").half()
    pipeline.save_pretrained(folder)
    _edit_json(folder / "model_index.json", tokenizer=["transformers", "PreTrainedTokenizerFast"])
    # Stored in half precision, but loaded in float32 by default, as diffusers does with the other parts.
    _edit_json(folder / "text_encoder" / "config.json", dtype="float32")
    _edit_json(folder / "vae" / "config.json")
    weights = list(folder.rglob("*.safetensors"))
    for path in weights:
        path.chmod(0o644)
    return sum(path.stat().st_size for path in weights)


def _edit_json(path: Path, **values: object) -> None:
    """Set values, and remove the path from which the part was loaded."""
    config = {**json.loads(path.read_text()), **values}
    config.pop("_name_or_path", None)
    path.write_text(json.dumps(config, indent=2) + "\n")


def check_folder(folder: Path) -> None:
    """Load the folder as a user would, and generate a few frames."""
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
    run = TrainingRun.open(options.work)
    folder = options.out or options.work / "model"
    trainer = FlowTrainer if options.undistilled else DistillTrainer
    size = export(assemble(run, Sizes(), trainer.checkpoint), folder)
    assert size <= MAX_BYTES, (
        f"the weights have {size} bytes, more than the package may contain ({MAX_BYTES})"
    )
    check_folder(folder)
    run.log("export", megabytes=size / 1e6, folder=str(folder))


if __name__ == "__main__":
    main()
