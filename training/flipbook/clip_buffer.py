"""The training data of the decoder: rendered clips and their latents in a ring buffer on the device.

Each clip is rendered, and encoded by the frozen encoder, once. New clips replace the oldest between steps.
"""

from dataclasses import dataclass, replace
from random import Random

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from training.flipbook.clip_formats import latent_grid
from training.flipbook.renderer import Format, Renderer, ScenePlan, plan_scenes
from training.flipbook.scenes import sample_training_scene
from training.flipbook.train_vae import choose_windows
from training.flipbook.training_run import TrainingRun
from training.flipbook.whole_clip import encode_clips

MAX_ENCODE_BATCH = 16  # clips rendered and encoded at a time; bounds the memory


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """How samples are cut from clips: a square crop around an actor, or the whole frame."""

    sources: tuple[Format, ...]
    frames: int
    crop: int | None
    batch: int
    capacity: int

    @property
    def size(self) -> Format:
        if self.crop is not None:
            return Format(self.crop, self.crop, self.frames)
        return replace(self.sources[0], frames=self.frames)


@dataclass(frozen=True, slots=True)
class DecoderBatch:
    """Latents with noise, and the frames they encode, as bytes."""

    latents: Tensor
    frames: Tensor


def trim_plan(scene_plan: ScenePlan, first: int, frames: int) -> ScenePlan:
    """The plan with only some of its frames: the same motion at the same speed."""
    layers = [replace(layer, poses=layer.poses[:, :, first : first + frames]) for layer in scene_plan.layers]
    return replace(scene_plan, layers=layers, size=replace(scene_plan.size, frames=frames))


class ClipBuffer:
    """A ring buffer of clips with one SampleSpec."""

    def __init__(self, run: TrainingRun, vae: AutoencoderKLWan, spec: SampleSpec, seed: int) -> None:
        self.run, self.vae, self.spec = run, vae, spec
        self.renderer, self.rng = Renderer(run.device), Random(seed)
        grid, size, capacity = latent_grid(spec.size), spec.size, spec.capacity
        shape = (capacity, vae.config.z_dim, *grid)
        self.means = torch.empty(shape, device=run.device)
        self.stds = torch.empty(shape, device=run.device)
        self.frames = torch.empty(
            (capacity, 3, size.frames, size.height, size.width), dtype=torch.uint8, device=run.device
        )
        self.clips_drawn = 0

    @property
    def filled(self) -> int:
        return min(self.clips_drawn, self.spec.capacity)

    @torch.no_grad()
    def refill(self, count: int) -> None:
        """Replace the oldest clips by `count` new ones."""
        for start in range(0, count, MAX_ENCODE_BATCH):
            clips = self._draw(min(MAX_ENCODE_BATCH, count - start))
            with self.run.autocast():
                mean, log_variance = encode_clips(self.vae, clips)
            positions = torch.arange(self.clips_drawn, self.clips_drawn + len(clips)) % self.spec.capacity
            positions = positions.to(self.run.device)
            self.means[positions] = mean.float()
            self.stds[positions] = torch.exp(0.5 * log_variance.float())
            self.frames[positions] = to_bytes(clips)
            self.clips_drawn += len(clips)

    def _draw(self, count: int) -> Tensor:
        spec, rng = self.spec, self.rng
        scenes = [sample_training_scene(rng) for _ in range(count)]
        scene_plan = plan_scenes(scenes, rng.choice(spec.sources), rng)
        scene_plan = trim_plan(scene_plan, rng.randint(0, scene_plan.size.frames - spec.frames), spec.frames)
        window = None if spec.crop is None else choose_windows(scene_plan, spec.crop, rng)
        return self.renderer.draw(scene_plan, window)

    def sample(self, batch: int) -> DecoderBatch:
        """A random batch, without synchronising with the host.

        The latents get noise between zero and the standard deviation of the encoder, because the latents of
        the transformer are not exact either.
        """
        device = self.run.device
        rows = torch.randint(self.filled, (batch,), device=device)
        strength = torch.rand((batch, 1, 1, 1, 1), device=device)
        means = self.means[rows]
        latents = torch.addcmul(means, strength * self.stds[rows], torch.randn_like(means))
        return DecoderBatch(latents, self.frames[rows])


def to_bytes(clips: Tensor) -> Tensor:
    return clips.add(1).mul_(127.5).round_().byte()


def to_unit(frames: Tensor) -> Tensor:
    """Bytes to -1 .. 1."""
    return frames.float() / 127.5 - 1
