"""Stage 3: trains the text encoder and the transformer by flow matching on the pool."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.flipbook.flow import Denoiser, Example, Pool, RunningAverage, blend, sample_noise_level
from training.flipbook.muon import MuonWithAdamW, Rates
from training.flipbook.networks import Sizes
from training.flipbook.time_box import learning_rate_scale
from training.flipbook.trainer import Trainer
from training.flipbook.training_run import TrainingRun, stage_parser
from training.flipbook.velocity import run_transformer

RATES = Rates(matrices=3e-3, others=1e-3, weight_decay=0.01)


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """Hyperparameters of the transformer."""

    batch: int = 256
    rates: Rates = RATES
    warmup_steps: int = 200
    hold_until: float = 0.3
    average_decay: float = 0.999
    empty_prompt_share: float = 0.1
    is_compiled: bool = True


class FlowTrainer(Trainer):
    """The denoiser, its average and its optimisers."""

    checkpoint = "transformer_training"

    def __init__(self, run: TrainingRun, sizes: Sizes, plan: FlowPlan) -> None:
        self.plan = plan
        self.denoiser = Denoiser(sizes, run.device)
        self.average = RunningAverage(self.denoiser, plan.average_decay)
        matrices = [weight for weight in self.denoiser.transformer.blocks.parameters() if weight.ndim == 2]
        self.optimizer = MuonWithAdamW(matrices, self.denoiser.parameters(), plan.rates)
        parts = {"denoiser": self.denoiser, "average": self.average.denoiser, "optimizer": self.optimizer}
        super().__init__(run, parts)
        self.pool = Pool(run, self.denoiser.transformer)
        self.forward = torch.compile(run_transformer, dynamic=False) if plan.is_compiled else run_transformer

    def compute_loss(self) -> Tensor:
        """Squared error of the velocity at a random noise level of random clips."""
        example = self.pool.sample(self.plan.batch)
        device = example.tokens.device
        example = example.without_text(
            torch.rand(self.plan.batch, device=device) < self.plan.empty_prompt_share
        )
        noise = torch.randn_like(example.tokens)
        level = sample_noise_level(self.plan.batch, device)
        noisy = blend(example.tokens, noise, level)
        with self.run.autocast():
            velocity = self.predict_velocity(self.denoiser, example, noisy, level)
        return F.mse_loss(velocity.float(), noise - example.tokens)

    def predict_velocity(self, denoiser: Denoiser, example: Example, noisy: Tensor, level: Tensor) -> Tensor:
        prompt = denoiser.encode_prompt(example)
        return self.forward(
            denoiser.transformer, noisy, 1000 * level, prompt.embeddings, prompt.bias, example.rotary
        )

    def train_step(self) -> Tensor:
        loss = self.compute_loss()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.denoiser.parameters(), 1.0)
        plan = self.plan
        scale = learning_rate_scale(
            self.progress, self.step, warmup_steps=plan.warmup_steps, hold_until=plan.hold_until
        )
        self.optimizer.step(scale)
        self.average.update(self.denoiser, self.step)
        self.step += 1
        return loss.detach()


def main() -> None:
    parser = stage_parser(__doc__)
    parser.add_argument("--batch", type=int, default=FlowPlan().batch)
    options = parser.parse_args()
    plan = FlowPlan(batch=options.batch, is_compiled=not options.no_compile)
    trainer = FlowTrainer(TrainingRun.open(options.work), Sizes(), plan)
    trainer.resume()
    trainer.train(options.seconds, options.until)


if __name__ == "__main__":
    main()
