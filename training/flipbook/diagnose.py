"""Where a VAE's error lies, and who is to blame: how far does the decoder come on clips that it may learn by
heart, and how far do latents come that may be anything?
"""

import argparse
import copy
import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from torch import Tensor

from training.flipbook.kernels import load_learner
from training.flipbook.muon import Duet
from training.flipbook.polish import RATES
from training.flipbook.reel import Cut, Reel, to_unit
from training.flipbook.renderer import Renderer, plan_shot
from training.flipbook.train_vae import SQUARE
from training.flipbook.whole_clip import decode_latents, encode_clips
from training.flipbook.workshop import Workshop
from training.flipbook.world import sample_held_out_scene

STEEP = 0.15  # a step from pixel to pixel that counts as an edge, of a range of 2
CHANGED = 0.1  # and how far from its median over time a pixel is that moves
CROPS = Cut((SQUARE,), frames=9, crop=96, batch=4, slots=8)


def find_edges(clip: Tensor) -> Tensor:
    """Pixels within two of a steep step: bool [1, 1, frames, height, width]."""
    down = F.pad(clip.diff(dim=3).abs().amax(1, keepdim=True), (0, 0, 1, 0))
    across = F.pad(clip.diff(dim=4).abs().amax(1, keepdim=True), (1, 0))
    return F.max_pool3d(torch.maximum(down, across), (1, 5, 5), 1, (0, 2, 2)) > STEEP


def find_motion(clip: Tensor) -> Tensor:
    still = clip.median(dim=2, keepdim=True).values
    return (clip - still).abs().amax(1, keepdim=True) > CHANGED


def measure_psnr(output: Tensor, target: Tensor) -> Tensor:
    """In dB, one for each clip."""
    return -10 * torch.log10(((output.clamp(-1, 1) - target) / 2).square().flatten(1).mean(1))


@torch.no_grad()
def map_error(vae: AutoencoderKLWan, clip: Tensor) -> dict[str, float]:
    """What share of the frame has edges or moves, and what share of the squared error lies there."""
    output = decode_latents(vae, encode_clips(vae, clip)[0]).clamp(-1, 1)
    error = (output - clip).square().mean(1, keepdim=True)
    shares = {}
    for name, place in (("edges", find_edges(clip)), ("motion", find_motion(clip))):
        shares[f"{name}_area"] = place.float().mean().item()
        shares[f"{name}_error"] = (error * place).sum().item() / error.sum().item()
    first, rest = (
        measure_psnr(output[:, :, :1], clip[:, :, :1]),
        measure_psnr(output[:, :, 1:], clip[:, :, 1:]),
    )
    return {
        "psnr_db": measure_psnr(output, clip).item(),
        "first_frame_gain_db": (first - rest).item(),
        **shares,
    }


def learn_by_heart(vae: AutoencoderKLWan, reel: Reel, steps: int) -> list[float]:
    """PSNR of the reel's clips, every ten steps of a decoder that sees nothing else."""
    vae = copy.deepcopy(vae)
    learning = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
    duet = Duet([weight for weight in learning if weight.numel() > len(weight)], learning, RATES)
    return _descend(vae, reel, torch.zeros_like(reel.means), duet.step, steps)


def free_latents(vae: AutoencoderKLWan, reel: Reel, steps: int) -> list[float]:
    """The same with the decoder as it is and latents that go wherever the error falls."""
    offset = torch.zeros_like(reel.means).requires_grad_(True)
    adam = torch.optim.Adam([offset], lr=0.03)

    def step(scale: float) -> None:
        adam.param_groups[0]["lr"] = 0.03 * scale
        adam.step()

    return _descend(vae, reel, offset, step, steps)


def _descend(
    vae: AutoencoderKLWan, reel: Reel, offset: Tensor, move: Callable[[float], None], steps: int
) -> list[float]:
    curve = []
    for step in range(steps + 1):
        psnr = measure_psnr(decode_latents(vae, reel.means + offset), to_unit(reel.frames)).mean()
        if step % 10 == 0:
            curve.append(psnr.item())
        vae.zero_grad()
        offset.grad = None
        (-psnr).backward()
        move(0.5 * (1 + math.cos(math.pi * step / (steps + 1))))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("src/filmgate/models/shipped/flipbook"))
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument("--clips", type=int, default=8, help="held-out clips whose error is mapped")
    parser.add_argument("--steps", type=int, default=60, help="of each descent; 0 for none")
    options = parser.parse_args()
    workshop = Workshop.open(options.work)
    vae, _ = load_learner(options.model, workshop.device)
    renderer, rng = Renderer(workshop.device), Random(99)
    for _ in range(options.clips):
        scene = sample_held_out_scene(rng, pair_share=0.3)
        shares = map_error(vae, renderer.draw(plan_shot([scene], SQUARE, rng)))
        workshop.log("error", setting=scene.setting, motion=scene.actors[0].motion, **shares)
    if options.steps:
        reel = Reel(workshop, vae, CROPS, seed=0)
        reel.refill(CROPS.slots)
        for descent in (learn_by_heart, free_latents):
            curve = [f"{psnr:.2f}" for psnr in descent(vae, reel, options.steps)]
            workshop.log("limit", of=descent.__name__, psnr_every_ten_steps=" ".join(curve))


if __name__ == "__main__":
    main()
