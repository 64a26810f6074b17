"""The loop of a stage: steps until its time is over, a log of the loss, and checkpoints to resume from."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from training.flipbook.time_box import Every, Pace, TimeBox
from training.flipbook.training_run import TrainingRun


class Trainer:
    """`parts` are the networks and the optimiser: everything with a state that a checkpoint keeps."""

    checkpoint: ClassVar[str]

    def __init__(self, run: TrainingRun, parts: Mapping[str, Any]) -> None:
        self.run, self.parts = run, parts
        self.step, self.progress = 0, 0.0

    def train_step(self) -> Tensor:
        """The loss of one step."""
        raise NotImplementedError

    def resume(self) -> None:
        state = self.run.load(self.checkpoint)
        if state is None:
            return
        for name, part in self.parts.items():
            if state[name] is not None:  # a model that was restored without its optimiser
                part.load_state_dict(state[name])
        self.step, self.progress = state["step"], state["progress"]
        torch.manual_seed(self.step)

    def save(self) -> None:
        states = {name: part.state_dict() for name, part in self.parts.items()}
        self.run.save(self.checkpoint, {**states, "step": self.step, "progress": self.progress})

    def train(self, seconds: float, until: float = 1.0) -> None:
        box = TimeBox(seconds, self.progress, until)
        logging, saving, pace = Every(5), Every(60), Pace()
        total, count = torch.zeros((), device=self.run.device), 0
        while not box.is_over:
            self.progress = box.progress
            total, count = total + self.train_step(), count + 1
            if logging.is_due():
                figures = {"progress": self.progress, "steps_per_second": pace.read(self.step)}
                self.run.log_loss(
                    self.checkpoint.split("_")[0], (total / count).item(), step=self.step, **figures
                )
                total, count = torch.zeros_like(total), 0
            if saving.is_due():
                self.save()
        self.progress = until
        self.save()


@torch.no_grad()
def update_average(averages: list[Tensor], weights: list[Tensor], decay: float, step: int) -> None:
    """An exponential moving average, which follows the weights more closely in the first steps."""
    torch._foreach_lerp_(averages, weights, 1 - min(decay, (1 + step) / (10 + step)))
