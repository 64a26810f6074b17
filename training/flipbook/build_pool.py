"""Stage 2: a pool of latents with captions, drawn and encoded once. Training then never waits for pixels."""

import argparse
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from training.flipbook.captions import write_caption
from training.flipbook.clip_formats import SHARES
from training.flipbook.renderer import Format, Renderer, Shot, plan_shot
from training.flipbook.time_box import Every, Pace, TimeBox
from training.flipbook.train_vae import load_vae
from training.flipbook.velocity import TEXT_SLOTS, cut_tokens
from training.flipbook.whole_clip import encode_clips
from training.flipbook.words import build_tokenizer, tokenize
from training.flipbook.workshop import Workshop
from training.flipbook.world import sample_training_scene


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """How many clips at most, and how they are made."""

    clips: int = 60_000
    batch: int = 32
    captions: int = 6
    shares: tuple[tuple[Format, float], ...] = tuple(SHARES.items())


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of scenes laid out, with several tokenized captions for each."""

    shot: Shot
    ids: Tensor  # int16 [clips, captions, slots]
    lengths: Tensor  # uint8 [clips, captions]


@cache
def _tokenizer() -> Any:
    return build_tokenizer()


def plan_batch(seed: int, plan: PoolPlan) -> Batch:
    rng = Random(seed)
    sizes, weights = zip(*plan.shares, strict=True)
    size = rng.choices(sizes, weights)[0]
    scenes = [sample_training_scene(rng) for _ in range(plan.batch)]
    texts = [write_caption(scene, rng) for scene in scenes for _ in range(plan.captions)]
    ids, lengths = tokenize(_tokenizer(), texts, TEXT_SLOTS)
    shape = (plan.batch, plan.captions)
    return Batch(
        plan_shot(scenes, size, rng),
        ids.short().view(*shape, TEXT_SLOTS),
        lengths.to(torch.uint8).view(shape),
    )


@torch.no_grad()
def build_pool(workshop: Workshop, plan: PoolPlan, seconds: float) -> None:
    torch.set_num_threads(1)  # scenes are laid out in tiny tensors, for which threads are no help
    vae, renderer, box = load_vae(workshop), Renderer(workshop.device), TimeBox(seconds)
    channels = vae.config.z_dim
    mean = torch.tensor(vae.config.latents_mean, device=workshop.device).view(1, channels, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std, device=workshop.device).view(1, channels, 1, 1, 1)
    shelves: dict[Format, list[tuple[Tensor, Tensor, Tensor]]] = {size: [] for size, _ in plan.shares}
    logging, pace, made = Every(5), Pace(), 0
    for seed in range(plan.clips // plan.batch):
        batch = plan_batch(seed, plan)
        with workshop.autocast():
            latents, _ = encode_clips(vae, renderer.draw(batch.shot))
        tokens = cut_tokens(((latents.float() - mean) / std).contiguous()).bfloat16()
        shelves[batch.shot.size].append((tokens, batch.ids, batch.lengths))
        made += plan.batch
        if logging.is_due():
            workshop.log("pool", clips=made, clips_per_second=pace.read(made), peak_gib=workshop.peak_gib())
        if box.is_over:
            break
    workshop.synchronize()
    workshop.log("pool", clips=made, seconds=box.elapsed)
    save_pool(workshop, shelves)


def save_pool(workshop: Workshop, shelves: dict[Format, list[tuple[Tensor, Tensor, Tensor]]]) -> None:
    pool = []
    for size, shelf in shelves.items():
        if not shelf:
            continue
        tokens, ids, lengths = (torch.cat(parts) for parts in zip(*shelf, strict=True))
        form = (size.width, size.height, size.frames)
        pool.append({"format": form, "tokens": tokens, "ids": ids, "lengths": lengths})
    workshop.save("pool", pool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--clips", type=int, default=PoolPlan().clips)
    options = parser.parse_args()
    build_pool(Workshop.open(options.work), PoolPlan(clips=options.clips), options.seconds)


if __name__ == "__main__":
    main()
