"""Stage 4: distils classifier-free guidance into the weights.

A student learns the guided velocity of its teacher. The model then needs one forward pass per step
(`guidance_scale=1.0`) instead of two.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from training.flipbook.flow import Example, blend, shift_noise_level
from training.flipbook.muon import Rates
from training.flipbook.networks import Sizes
from training.flipbook.train_transformer import FlowPlan, FlowTrainer
from training.flipbook.training_run import TrainingRun, stage_parser

GUIDANCE = 3.0  # the guidance scale of the teacher


class DistillTrainer(FlowTrainer):
    """The loop of FlowTrainer with another target: the guided velocity of the averaged model."""

    checkpoint = "student_training"

    def __init__(self, run: TrainingRun, sizes: Sizes, plan: FlowPlan, guidance: float = GUIDANCE) -> None:
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
            velocity = self.predict_velocity(self.denoiser, example, noisy, level)
            target = self.guided_velocity(example, noisy, level)
        return F.mse_loss(velocity.float(), target)

    @torch.no_grad()
    def guided_velocity(self, example: Example, noisy: Tensor, level: Tensor) -> Tensor:
        """The teacher's velocity with classifier-free guidance."""
        every_clip = torch.ones(len(noisy), dtype=torch.bool, device=noisy.device)
        conditional, unconditional = (
            self.predict_velocity(self.teacher, version, noisy, level).float()
            for version in (example, example.without_text(every_clip))
        )
        return unconditional + self.guidance * (conditional - unconditional)


def main() -> None:
    parser = stage_parser(__doc__)
    parser.add_argument("--guidance", type=float, default=GUIDANCE)
    options = parser.parse_args()
    plan = FlowPlan(
        rates=Rates(matrices=1e-3, others=3e-4, weight_decay=0.01),
        warmup_steps=50,
        hold_until=0.2,
        average_decay=0.995,
        is_compiled=not options.no_compile,
    )
    trainer = DistillTrainer(TrainingRun.open(options.work), Sizes(), plan, options.guidance)
    trainer.resume()
    trainer.train(options.seconds, options.until)


if __name__ == "__main__":
    main()
