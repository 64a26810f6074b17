"""Begins a training run from an exported folder: for a fresh machine that has lost its checkpoints.

The optimisers start anew; the weights and the place in the schedule do not.
"""

import argparse
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanPipeline

from training.flipbook.train_transformer import FlowTrainer
from training.flipbook.workshop import Workshop


def restore(model: Path, workshop: Workshop, progress: float) -> None:
    if not (model / "model_index.json").exists():
        shutil.copytree(model, workshop.folder / "vae", dirs_exist_ok=True)
        return
    pipeline = WanPipeline.from_pretrained(model, dtype=torch.float32, local_files_only=True)
    AutoencoderKLWan.from_pretrained(model / "vae").save_pretrained(workshop.folder / "vae")
    weights = {
        "text_encoder": pipeline.text_encoder.state_dict(),
        "transformer": pipeline.transformer.state_dict(),
    }
    state = {"painter": weights, "average": weights, "optimizer": None, "step": 1000, "progress": progress}
    workshop.save(FlowTrainer.checkpoint, state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="an exported pipeline folder, or a VAE folder alone"
    )
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument(
        "--progress", type=float, default=0.0, help="place in the transformer's schedule, 0 to 1"
    )
    options = parser.parse_args()
    restore(options.model, Workshop.open(options.work), options.progress)


if __name__ == "__main__":
    main()
