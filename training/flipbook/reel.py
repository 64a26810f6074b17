"""What the decoder is polished on: clips drawn and folded once by the frozen encoder, kept on the device.

Frames lie there as bytes beside their latents, in a ring. Fresh clips push out the oldest while training goes
on, so a step costs no drawing and no encoding.
"""

from dataclasses import dataclass, replace
from random import Random

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from training.flipbook.clip_formats import latent_grid
from training.flipbook.renderer import Format, Renderer, Shot, plan_shot
from training.flipbook.train_vae import aim_windows
from training.flipbook.whole_clip import encode_clips
from training.flipbook.workshop import Workshop
from training.flipbook.world import sample_training_scene

DEEPEST = 16  # clips drawn and encoded at a time, to bound the memory this takes


@dataclass(frozen=True, slots=True)
class Cut:
    """How clips are cut for one part of the schedule: a square that follows an actor, or the whole frame."""

    sources: tuple[Format, ...]
    frames: int
    crop: int | None
    batch: int
    slots: int

    @property
    def size(self) -> Format:
        if self.crop is not None:
            return Format(self.crop, self.crop, self.frames)
        return replace(self.sources[0], frames=self.frames)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch: latents as the decoder may meet them, and the frames as bytes that they stand for."""

    latents: Tensor
    frames: Tensor


def cut_shot(shot: Shot, first: int, frames: int) -> Shot:
    """The same motion at the same speed, seen for a shorter time."""
    layers = [replace(cast, poses=cast.poses[:, :, first : first + frames]) for cast in shot.layers]
    return replace(shot, layers=layers, size=replace(shot.size, frames=frames))


class Reel:
    """The ring of lessons of one cut."""

    def __init__(self, workshop: Workshop, vae: AutoencoderKLWan, cut: Cut, seed: int) -> None:
        self.workshop, self.vae, self.cut = workshop, vae, cut
        self.renderer, self.rng = Renderer(workshop.device), Random(seed)
        grid, size, slots = latent_grid(cut.size), cut.size, cut.slots
        shape = (slots, vae.config.z_dim, *grid)
        self.means = torch.empty(shape, device=workshop.device)
        self.deviations = torch.empty(shape, device=workshop.device)
        self.frames = torch.empty(
            (slots, 3, size.frames, size.height, size.width), dtype=torch.uint8, device=workshop.device
        )
        self.drawn = 0

    @property
    def filled(self) -> int:
        return min(self.drawn, self.cut.slots)

    @torch.no_grad()
    def refill(self, count: int) -> None:
        """Fresh clips in the place of the oldest."""
        for start in range(0, count, DEEPEST):
            clips = self._draw(min(DEEPEST, count - start))
            with self.workshop.autocast():
                mean, log_variance = encode_clips(self.vae, clips)
            places = torch.arange(self.drawn, self.drawn + len(clips)) % self.cut.slots
            places = places.to(self.workshop.device)
            self.means[places] = mean.float()
            self.deviations[places] = torch.exp(0.5 * log_variance.float())
            self.frames[places] = to_bytes(clips)
            self.drawn += len(clips)

    def _draw(self, count: int) -> Tensor:
        cut, rng = self.cut, self.rng
        shot = plan_shot([sample_training_scene(rng) for _ in range(count)], rng.choice(cut.sources), rng)
        shot = cut_shot(shot, rng.randint(0, shot.size.frames - cut.frames), cut.frames)
        return self.renderer.draw(shot, None if cut.crop is None else aim_windows(shot, cut.crop, rng))

    def sample(self, batch: int) -> Lesson:
        """Without a word to the host. The encoder's own doubt about its latents comes in any strength up to
        its full one: what a transformer hands to the decoder is never exact either.
        """
        device = self.workshop.device
        rows = torch.randint(self.filled, (batch,), device=device)
        strength = torch.rand((batch, 1, 1, 1, 1), device=device)
        means = self.means[rows]
        latents = torch.addcmul(means, strength * self.deviations[rows], torch.randn_like(means))
        return Lesson(latents, self.frames[rows])


def to_bytes(clips: Tensor) -> Tensor:
    return clips.add(1).mul_(127.5).round_().byte()


def to_unit(frames: Tensor) -> Tensor:
    """Bytes to -1 .. 1."""
    return frames.float() / 127.5 - 1
