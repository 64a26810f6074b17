"""What every training stage shares: the folder on disk, the device, atomic checkpoints and the log."""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Workshop:
    """The folder in which one training run lives, and the device it runs on."""

    folder: Path
    device: torch.device

    @classmethod
    def open(cls, folder: Path) -> "Workshop":
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        return cls(folder, torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def autocast(self) -> torch.autocast:
        """bfloat16 on a GPU; on a CPU its convolutions are slow and tests want exact numbers."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda")

    def save(self, name: str, state: Any) -> None:
        """All or nothing: a call that is cut off leaves the previous checkpoint whole."""
        part = self.folder / f"{name}.pt.part"
        torch.save(state, part)
        part.replace(self.folder / f"{name}.pt")

    def load(self, name: str) -> Any | None:
        path = self.folder / f"{name}.pt"
        return torch.load(path, map_location=self.device, weights_only=True) if path.exists() else None

    def require(self, name: str) -> Any:
        state = self.load(name)
        if state is None:
            raise SystemExit(f"{self.folder / name}.pt is missing: run the stage that makes it first")
        return state

    def log(self, stage: str, **values: float | str) -> None:
        """One line on the terminal and in log.jsonl."""
        tidy = {key: round(value, 5) if isinstance(value, float) else value for key, value in values.items()}
        print(
            f"{time.strftime('%H:%M:%S')} {stage:12s}",
            *(f"{key}={value}" for key, value in tidy.items()),
            flush=True,
        )
        with (self.folder / "log.jsonl").open("a") as book:
            book.write(json.dumps({"stage": stage, "time": time.time(), **tidy}) + "\n")

    def log_loss(self, stage: str, loss: float, **values: float | str) -> None:
        """As `log`, but a loss that is no number ends the stage before it overwrites a good checkpoint."""
        self.log(stage, loss=loss, peak_gib=self.peak_gib(), **values)
        if not math.isfinite(loss):
            raise SystemExit(f"{stage} diverged: its last checkpoint in {self.folder} is kept")

    def peak_gib(self) -> float:
        return torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else 0.0

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
