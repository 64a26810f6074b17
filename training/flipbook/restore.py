"""Resumes a training run from an exported folder, on a machine without its checkpoints.

Restores the weights and the position in the schedule, but not the state of the optimisers.
"""

import argparse
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanPipeline

from training.flipbook.train_transformer import FlowTrainer
from training.flipbook.training_run import TrainingRun


def restore(model: Path, run: TrainingRun, progress: float) -> None:
    if not (model / "model_index.json").exists():
        shutil.copytree(model, run.folder / "vae", dirs_exist_ok=True)
        return
    pipeline = WanPipeline.from_pretrained(model, dtype=torch.float32, local_files_only=True)
    AutoencoderKLWan.from_pretrained(model / "vae").save_pretrained(run.folder / "vae")
    weights = {
        "text_encoder": pipeline.text_encoder.state_dict(),
        "transformer": pipeline.transformer.state_dict(),
    }
    state = {"denoiser": weights, "average": weights, "optimizer": None, "step": 1000, "progress": progress}
    run.save(FlowTrainer.checkpoint, state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="an exported pipeline folder, or a VAE folder"
    )
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument(
        "--progress", type=float, default=0.0, help="position in the transformer's schedule, 0 to 1"
    )
    options = parser.parse_args()
    restore(options.model, TrainingRun.open(options.work), options.progress)


if __name__ == "__main__":
    main()
