"""Stage 4: distils classifier-free guidance into the weights.

A student learns the guided velocity of its teacher. The model then needs one forward pass per step
(`guidance_scale=1.0`) instead of two.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from training.flipbook.flow import Example, blend, shift_noise_level
from training.flipbook.muon import Rates
from training.flipbook.networks import Sizes
from training.flipbook.train_transformer import FlowPlan, FlowTrainer
from training.flipbook.training_run import TrainingRun


@dataclass(frozen=True, slots=True)
class Guidance:
    """The guidance scale of the teacher."""

    scale: float = 3.0


class DistillTrainer(FlowTrainer):
    """The loop of FlowTrainer with another target: the guided velocity of the averaged model."""

    checkpoint = "student_training"

    def __init__(self, run: TrainingRun, sizes: Sizes, plan: FlowPlan, guidance: Guidance) -> None:
        super().__init__(run, sizes, plan)
        self.guidance = guidance
        trained = run.require(FlowTrainer.checkpoint)["average"]
        self.denoiser.load_state_dict(trained)
        self.average.denoiser.load_state_dict(trained)
        self.teacher = self.denoiser.clone().freeze()

    def compute_loss(self) -> Tensor:
        example = self.pool.sample(self.plan.batch)
        device = example.tokens.device
        level = shift_noise_level(torch.rand(self.plan.batch, device=device))
        noisy = blend(example.tokens, torch.randn_like(example.tokens), level)
        with self.run.autocast():
            prompt = self.denoiser.encode_prompt(example)
            velocity = self.forward(
                self.denoiser.transformer, noisy, 1000 * level, prompt.embeddings, prompt.bias, example.rotary
            )
            target = self.guided_velocity(example, noisy, level)
        return F.mse_loss(velocity.float(), target)

    @torch.no_grad()
    def guided_velocity(self, example: Example, noisy: Tensor, level: Tensor) -> Tensor:
        """The teacher's velocity with classifier-free guidance."""
        every_clip = torch.ones(len(noisy), dtype=torch.bool, device=noisy.device)
        velocities = []
        for version in (example, example.without_text(every_clip)):
            prompt = self.teacher.encode_prompt(version)
            velocities.append(
                self.forward(
                    self.teacher.transformer,
                    noisy,
                    1000 * level,
                    prompt.embeddings,
                    prompt.bias,
                    example.rotary,
                ).float()
            )
        conditional, unconditional = velocities
        return unconditional + self.guidance.scale * (conditional - unconditional)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument(
        "--until",
        type=float,
        default=1.0,
        help="position in the whole schedule at which this call ends, 0 to 1",
    )
    parser.add_argument("--guidance", type=float, default=Guidance().scale)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    plan = FlowPlan(
        rates=Rates(matrices=1e-3, others=3e-4, weight_decay=0.01),
        warmup_steps=50,
        hold_until=0.2,
        average_decay=0.995,
        is_compiled=not options.no_compile,
    )
    trainer = DistillTrainer(TrainingRun.open(options.work), Sizes(), plan, Guidance(options.guidance))
    trainer.resume()
    trainer.train(options.seconds, options.until)


if __name__ == "__main__":
    main()
