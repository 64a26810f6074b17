"""What all training stages share: the work folder, the device, atomic checkpoints and the log."""

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The folder of one training run and its device."""

    folder: Path
    device: torch.device

    @classmethod
    def open(cls, folder: Path) -> "TrainingRun":
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        return cls(folder, torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def autocast(self) -> torch.autocast:
        """bfloat16 on a GPU only: on a CPU its convolutions are slow, and tests compare exact numbers."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda")

    def save(self, name: str, state: Any) -> None:
        """Write atomically: an interrupted run leaves the previous checkpoint intact."""
        part = self.folder / f"{name}.pt.part"
        torch.save(state, part)
        part.replace(self.folder / f"{name}.pt")

    def load(self, name: str) -> Any | None:
        path = self.folder / f"{name}.pt"
        return torch.load(path, map_location=self.device, weights_only=True) if path.exists() else None

    def require(self, name: str) -> Any:
        state = self.load(name)
        if state is None:
            raise SystemExit(f"{self.folder / name}.pt is missing; run the stage that writes it first")
        return state

    def log(self, stage: str, **values: float | str) -> None:
        """Write one line to the terminal and to log.jsonl."""
        rounded = {
            key: round(value, 5) if isinstance(value, float) else value for key, value in values.items()
        }
        print(
            f"{time.strftime('%H:%M:%S')} {stage:12s}",
            *(f"{key}={value}" for key, value in rounded.items()),
            flush=True,
        )
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps({"stage": stage, "time": time.time(), **rounded}) + "\n")

    def log_loss(self, stage: str, loss: float, **values: float | str) -> None:
        """Log the loss; exit if it is not finite, before a checkpoint is overwritten."""
        self.log(stage, loss=loss, peak_gib=self.peak_gib(), **values)
        if not math.isfinite(loss):
            raise SystemExit(
                f"{stage} diverged: the loss is not finite; the last checkpoint is in {self.folder}"
            )

    def peak_gib(self) -> float:
        return torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else 0.0

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def stage_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of a stage that trains by wall-clock time."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument(
        "--seconds", type=float, required=True, help="wall-clock seconds of the training loop"
    )
    parser.add_argument(
        "--until",
        type=float,
        default=1.0,
        help="position in the whole schedule at which this run ends, 0 to 1",
    )
    parser.add_argument("--no-compile", action="store_true", help="train without torch.compile")
    return parser
