"""Stage 3: flow matching. Text encoder and transformer learn, from the pool, which way from noise to a
clip.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.flipbook.flow import Painter, Pool, RunningAverage, blend, sample_noise_level
from training.flipbook.muon import Duet, Rates
from training.flipbook.networks import Sizes
from training.flipbook.time_box import Every, Pace, TimeBox, learning_rate_scale
from training.flipbook.velocity import run_transformer
from training.flipbook.workshop import Workshop

RATES = Rates(matrices=3e-3, others=1e-3, weight_decay=0.01)


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """How the transformer is trained."""

    batch: int = 256
    rates: Rates = RATES
    warmup_steps: int = 200
    hold_until: float = 0.3
    average_decay: float = 0.999
    empty_prompt_share: float = 0.1
    is_compiled: bool = True


class FlowTrainer:
    """Painter, average, optimisers and place in the schedule; everything needed to stop and go on."""

    checkpoint = "transformer_training"

    def __init__(self, workshop: Workshop, sizes: Sizes, plan: FlowPlan) -> None:
        self.workshop, self.plan = workshop, plan
        self.painter = Painter(sizes, workshop.device)
        self.average = RunningAverage(self.painter, plan.average_decay)
        matrices = [weight for weight in self.painter.transformer.blocks.parameters() if weight.ndim == 2]
        self.optimizer = Duet(matrices, self.painter.parameters(), plan.rates)
        self.pool = Pool(workshop, self.painter.transformer)
        self.step, self.progress = 0, 0.0
        self.run = torch.compile(run_transformer, dynamic=False) if plan.is_compiled else run_transformer

    def resume(self) -> None:
        state = self.workshop.load(self.checkpoint)
        if state is None:
            return
        self.painter.load_state_dict(state["painter"])
        self.average.painter.load_state_dict(state["average"])
        if state["optimizer"] is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.progress = state["step"], state["progress"]
        torch.manual_seed(self.step)

    def save(self) -> None:
        state: dict[str, Any] = {
            "painter": self.painter.state_dict(),
            "average": self.average.painter.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        self.workshop.save(self.checkpoint, {**state, "step": self.step, "progress": self.progress})

    def find_loss(self) -> Tensor:
        """Squared error of the velocity at a random place on a random clip's path."""
        example = self.pool.sample(self.plan.batch)
        device = example.tokens.device
        example = example.without_text(
            torch.rand(self.plan.batch, device=device) < self.plan.empty_prompt_share
        )
        noise = torch.randn_like(example.tokens)
        level = sample_noise_level(self.plan.batch, device)
        noisy = blend(example.tokens, noise, level)
        with self.workshop.autocast():
            prompt = self.painter.read(example)
            velocity = self.run(
                self.painter.transformer, noisy, 1000 * level, prompt.embeddings, prompt.bias, example.rotary
            )
        return F.mse_loss(velocity.float(), noise - example.tokens)

    def train_step(self) -> Tensor:
        loss = self.find_loss()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.painter.parameters(), 1.0)
        plan = self.plan
        scale = learning_rate_scale(
            self.progress, self.step, warmup_steps=plan.warmup_steps, hold_until=plan.hold_until
        )
        self.optimizer.step(scale)
        self.average.follow(self.painter, self.step)
        self.step += 1
        return loss.detach()

    def train(self, seconds: float, until: float = 1.0) -> None:
        box = TimeBox(seconds, self.progress, until)
        logging, saving, pace = Every(5), Every(60), Pace()
        total, count = torch.zeros((), device=self.workshop.device), 0
        while not box.is_over:
            self.progress = box.progress
            total, count = total + self.train_step(), count + 1
            if logging.is_due():
                self.workshop.log_loss(
                    self.checkpoint.split("_")[0],
                    (total / count).item(),
                    step=self.step,
                    progress=self.progress,
                    steps_per_second=pace.read(self.step),
                )
                total, count = torch.zeros_like(total), 0
            if saving.is_due():
                self.save()
        self.progress = until
        self.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument(
        "--until", type=float, default=1.0, help="where in the whole schedule this call ends, 0 to 1"
    )
    parser.add_argument("--batch", type=int, default=FlowPlan().batch)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    plan = FlowPlan(batch=options.batch, is_compiled=not options.no_compile)
    trainer = FlowTrainer(Workshop.open(options.work), Sizes(), plan)
    trainer.resume()
    trainer.train(options.seconds, options.until)


if __name__ == "__main__":
    main()
