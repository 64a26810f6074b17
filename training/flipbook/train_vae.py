"""Stage 1: trains the VAE from scratch, with a compression of 16 x 16 x 4, for a number of seconds."""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from training.flipbook.networks import Sizes, build_vae
from training.flipbook.renderer import Format, Renderer, ScenePlan, Window, plan_scenes
from training.flipbook.scenes import sample_held_out_scene, sample_training_scene
from training.flipbook.time_box import learning_rate_scale
from training.flipbook.trainer import Trainer
from training.flipbook.training_run import TrainingRun, stage_parser
from training.flipbook.whole_clip import decode_latents, encode_clips, measure_psnr, use_channels_last

SQUARE = Format(256, 256, 33)
STATISTICS_CLIPS = 512
MIN_STD = 0.1  # a channel that the encoder does not use must not be amplified to noise


@dataclass(frozen=True, slots=True)
class VaePlan:
    """Hyperparameters of the VAE. Trains on crops first, and on whole frames at the end of the schedule."""

    crop: int = 128
    crop_batch: int = 8
    whole_batch: int = 2
    crops_until: float = 0.8
    crop_from: tuple[Format, ...] = (SQUARE, Format(384, 192, 33), Format(192, 384, 33))
    whole: Format = SQUARE
    learning_rate: float = 1e-3
    kl_weight: float = 1e-4
    edge_weight: float = 0.5
    is_compiled: bool = True


def reconstruction_loss(output: Tensor, target: Tensor, edge_weight: float) -> Tensor:
    """Absolute and squared error, and the error of differences along x, y and time.

    The differences keep edges sharp and prevent flicker between frames.
    """
    error = output.float() - target
    edges = sum(error.diff(dim=axis).abs().mean() for axis in (2, 3, 4))
    return error.abs().mean() + error.square().mean() + edge_weight * edges


def autoencode(vae: AutoencoderKLWan, clips: Tensor) -> tuple[Tensor, Tensor]:
    """The reconstruction, and the mean KL divergence of the latents from a unit Gaussian."""
    mean, log_variance = encode_clips(vae, clips)
    mean, log_variance = mean.float(), log_variance.float()
    latents = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    return decode_latents(vae, latents), divergence


def choose_windows(scene_plan: ScenePlan, crop: int, rng: Random) -> Window:
    """Crops that mostly contain an actor: around its position in a random frame, with a random offset."""
    size, layer = scene_plan.size, scene_plan.layers[0]  # the rearmost layer has one actor per clip
    shorter = min(size.width, size.height)
    corners = []
    for pose in layer.poses:
        frame = rng.randrange(size.frames)
        x = size.width / 2 + shorter * float(pose[0, frame]) - crop * rng.uniform(0.2, 0.8)
        y = size.height / 2 + shorter * float(pose[1, frame]) - crop * rng.uniform(0.2, 0.8)
        if rng.random() < 0.15:
            x, y = rng.uniform(0, size.width - crop), rng.uniform(0, size.height - crop)
        corners.append((min(max(0.0, x), size.width - crop), min(max(0.0, y), size.height - crop)))
    left, top = torch.tensor(corners).round().unbind(1)
    return Window(left, top, crop, crop)


class VaeTrainer(Trainer):
    """The VAE and its optimiser."""

    checkpoint = "vae_training"

    def __init__(self, run: TrainingRun, sizes: Sizes, plan: VaePlan) -> None:
        self.plan = plan
        self.vae = build_vae(sizes).to(run.device)
        use_channels_last(self.vae)
        self.renderer = Renderer(run.device)
        fused = run.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.vae.parameters(), lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=fused
        )
        super().__init__(run, {"vae": self.vae, "optimizer": self.optimizer})
        self.rng = Random(0)
        self._compiled = torch.compile(autoencode, dynamic=False) if plan.is_compiled else autoencode

    def resume(self) -> None:
        super().resume()
        self.rng = Random(self.step)

    def draw_batch(self, *, whole: bool) -> Tensor:
        plan = self.plan
        count = plan.whole_batch if whole else plan.crop_batch
        size = plan.whole if whole else self.rng.choice(plan.crop_from)
        scenes = [sample_training_scene(self.rng) for _ in range(count)]
        scene_plan = plan_scenes(scenes, size, self.rng)
        return self.renderer.draw(
            scene_plan, None if whole else choose_windows(scene_plan, self.plan.crop, self.rng)
        )

    def train_step(self) -> Tensor:
        whole = self.progress >= self.plan.crops_until
        clips = self.draw_batch(whole=whole)
        forward = autoencode if whole else self._compiled
        with self.run.autocast():
            output, divergence = forward(self.vae, clips)
        loss = reconstruction_loss(output, clips, self.plan.edge_weight) + self.plan.kl_weight * divergence
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.vae.parameters(), 1.0)
        scale = learning_rate_scale(self.progress, self.step, warmup_steps=100, hold_until=0.4)
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.learning_rate * scale
        self.optimizer.step()
        self.step += 1
        return loss.detach()


@torch.no_grad()
def measure_reconstruction(
    vae: AutoencoderKLWan, renderer: Renderer, clips: int, size: Format
) -> dict[str, float]:
    """The PSNR of held-out clips, that of the worst clip, and the flicker at chunk borders.

    Flicker is the change of the error from frame to frame at chunk borders, relative to that inside chunks.
    """
    rng = Random(99)
    scores, border, inside = [], [], []
    for _ in range(clips):
        target = renderer.draw(plan_scenes([sample_held_out_scene(rng, pair_share=0.3)], size, rng))
        mean, _ = encode_clips(vae, target)
        output = decode_latents(vae, mean).clamp(-1, 1).float()
        scores.append(measure_psnr(output, target).item())
        change = (output - target).diff(dim=2).abs().mean(dim=(0, 1, 3, 4))
        at_border = torch.arange(len(change), device=change.device) % 4 == 0
        border.append(change[at_border].mean().item())
        inside.append(change[~at_border].mean().item())
    flicker = sum(border) / sum(inside)
    return {"psnr_db": sum(scores) / len(scores), "worst_db": min(scores), "chunk_border_flicker": flicker}


@torch.no_grad()
def measure_latents(
    vae: AutoencoderKLWan, renderer: Renderer, clips: int, size: Format
) -> tuple[list[float], list[float]]:
    """The mean and standard deviation of every latent channel over training scenes."""
    rng = Random(7)
    samples = []
    for _ in range(0, clips, 8):
        scenes = [sample_training_scene(rng) for _ in range(8)]
        mean, _ = encode_clips(vae, renderer.draw(plan_scenes(scenes, size, rng)))
        samples.append(mean.float())
    latents = torch.cat(samples).transpose(0, 1).flatten(1)
    return latents.mean(1).tolist(), latents.std(1).clamp_min(MIN_STD).tolist()


def finish_vae(run: TrainingRun, trainer: VaeTrainer, clips: int = STATISTICS_CLIPS) -> Path:
    """Measure the VAE, add the statistics of its latents to its configuration, and save it for diffusers."""
    size = trainer.plan.whole
    with run.autocast():
        mean, std = measure_latents(trainer.vae, trainer.renderer, clips, size)
    trainer.vae.register_to_config(latents_mean=mean, latents_std=std)
    run.log("vae", latent_std_min=min(std), latent_std_max=max(std))
    run.log("vae", **measure_reconstruction(trainer.vae, trainer.renderer, max(4, clips // 16), size))
    folder = run.folder / "vae"
    trainer.vae.save_pretrained(folder)
    return folder


def load_vae(run: TrainingRun) -> Any:
    vae = AutoencoderKLWan.from_pretrained(run.folder / "vae").to(run.device).eval().requires_grad_(False)
    use_channels_last(vae)
    return vae


def main() -> None:
    options = stage_parser(__doc__).parse_args()
    run = TrainingRun.open(options.work)
    trainer = VaeTrainer(run, Sizes(), VaePlan(is_compiled=not options.no_compile))
    trainer.resume()
    trainer.train(options.seconds, options.until)
    if options.until >= 1.0:
        finish_vae(run, trainer)


if __name__ == "__main__":
    main()
