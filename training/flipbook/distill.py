"""Stage 4: guidance moves into the weights: a student learns to say at once what its teacher says with it.

Afterwards one forward a step is enough: `guidance_scale=1.0` at half the cost.
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
from training.flipbook.workshop import Workshop


@dataclass(frozen=True, slots=True)
class Guidance:
    """How far the teacher leans towards the prompt."""

    scale: float = 3.0


class DistillTrainer(FlowTrainer):
    """The same loop with another target: the guided velocity of the averaged model."""

    checkpoint = "student_training"

    def __init__(self, workshop: Workshop, sizes: Sizes, plan: FlowPlan, guidance: Guidance) -> None:
        super().__init__(workshop, sizes, plan)
        self.guidance = guidance
        learned = workshop.require(FlowTrainer.checkpoint)["average"]
        self.painter.load_state_dict(learned)
        self.average.painter.load_state_dict(learned)
        self.teacher = self.painter.clone().freeze()

    def find_loss(self) -> Tensor:
        example = self.pool.sample(self.plan.batch)
        device = example.tokens.device
        level = shift_noise_level(torch.rand(self.plan.batch, device=device))
        noisy = blend(example.tokens, torch.randn_like(example.tokens), level)
        with self.workshop.autocast():
            prompt = self.painter.read(example)
            velocity = self.run(
                self.painter.transformer, noisy, 1000 * level, prompt.embeddings, prompt.bias, example.rotary
            )
            target = self.guide(example, noisy, level)
        return F.mse_loss(velocity.float(), target)

    @torch.no_grad()
    def guide(self, example: Example, noisy: Tensor, level: Tensor) -> Tensor:
        """The teacher's velocity with the prompt, pushed away from the one without."""
        everyone = torch.ones(len(noisy), dtype=torch.bool, device=noisy.device)
        answers = []
        for version in (example, example.without_text(everyone)):
            prompt = self.teacher.read(version)
            answers.append(
                self.run(
                    self.teacher.transformer,
                    noisy,
                    1000 * level,
                    prompt.embeddings,
                    prompt.bias,
                    example.rotary,
                ).float()
            )
        told, untold = answers
        return untold + self.guidance.scale * (told - untold)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument(
        "--until", type=float, default=1.0, help="where in the whole schedule this call ends, 0 to 1"
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
    trainer = DistillTrainer(Workshop.open(options.work), Sizes(), plan, Guidance(options.guidance))
    trainer.resume()
    trainer.train(options.seconds, options.until)


if __name__ == "__main__":
    main()
