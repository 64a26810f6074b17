"""Stage 2: renders and encodes a pool of latents with captions, so the transformer stages need no pixels."""

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
from training.flipbook.renderer import Format, Renderer, ScenePlan, plan_scenes
from training.flipbook.scenes import sample_training_scene
from training.flipbook.time_box import Every, Pace, TimeBox
from training.flipbook.tokenizer import build_tokenizer, tokenize
from training.flipbook.train_vae import load_vae
from training.flipbook.training_run import TrainingRun
from training.flipbook.velocity import TEXT_LENGTH, to_tokens
from training.flipbook.whole_clip import encode_clips


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The maximum number of clips, and how they are made."""

    clips: int = 60_000
    batch: int = 32
    captions: int = 6
    shares: tuple[tuple[Format, float], ...] = tuple(SHARES.items())


@dataclass(frozen=True, slots=True)
class Batch:
    """The plan of a batch of scenes, with several tokenized captions per scene."""

    scene_plan: ScenePlan
    ids: Tensor  # int16 [clips, captions, tokens]
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
    ids, lengths = tokenize(_tokenizer(), texts, TEXT_LENGTH)
    shape = (plan.batch, plan.captions)
    return Batch(
        plan_scenes(scenes, size, rng),
        ids.short().view(*shape, TEXT_LENGTH),
        lengths.to(torch.uint8).view(shape),
    )


@torch.no_grad()
def build_pool(run: TrainingRun, plan: PoolPlan, seconds: float) -> None:
    torch.set_num_threads(1)  # planning scenes uses tiny tensors, which threads do not speed up
    vae, renderer, box = load_vae(run), Renderer(run.device), TimeBox(seconds)
    channels = vae.config.z_dim
    mean = torch.tensor(vae.config.latents_mean, device=run.device).view(1, channels, 1, 1, 1)
    std = torch.tensor(vae.config.latents_std, device=run.device).view(1, channels, 1, 1, 1)
    by_format: dict[Format, list[tuple[Tensor, Tensor, Tensor]]] = {size: [] for size, _ in plan.shares}
    logging, pace, made = Every(5), Pace(), 0
    for seed in range(plan.clips // plan.batch):
        batch = plan_batch(seed, plan)
        with run.autocast():
            latents, _ = encode_clips(vae, renderer.draw(batch.scene_plan))
        tokens = to_tokens(((latents.float() - mean) / std).contiguous()).bfloat16()
        by_format[batch.scene_plan.size].append((tokens, batch.ids, batch.lengths))
        made += plan.batch
        if logging.is_due():
            run.log("pool", clips=made, clips_per_second=pace.read(made), peak_gib=run.peak_gib())
        if box.is_over:
            break
    run.synchronize()
    run.log("pool", clips=made, seconds=box.elapsed)
    save_pool(run, by_format)


def save_pool(run: TrainingRun, by_format: dict[Format, list[tuple[Tensor, Tensor, Tensor]]]) -> None:
    pool = []
    for size, batches in by_format.items():
        if not batches:
            continue
        tokens, ids, lengths = (torch.cat(parts) for parts in zip(*batches, strict=True))
        dimensions = (size.width, size.height, size.frames)
        pool.append({"format": dimensions, "tokens": tokens, "ids": ids, "lengths": lengths})
    run.save("pool", pool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--clips", type=int, default=PoolPlan().clips)
    options = parser.parse_args()
    build_pool(TrainingRun.open(options.work), PoolPlan(clips=options.clips), options.seconds)


if __name__ == "__main__":
    main()
