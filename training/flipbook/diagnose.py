"""Shows where the error of a VAE is, and whether its encoder or its decoder limits the quality.

It overfits the decoder to a few clips, and separately optimises the latents of these clips.
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

from training.flipbook.clip_buffer import ClipBuffer, SampleSpec, to_unit
from training.flipbook.decoder_variants import load_trainable_vae
from training.flipbook.finetune_decoder import RATES, make_optimizer
from training.flipbook.renderer import Renderer, plan_scenes
from training.flipbook.scenes import sample_held_out_scene
from training.flipbook.train_vae import SQUARE
from training.flipbook.training_run import TrainingRun
from training.flipbook.whole_clip import decode_latents, encode_clips, measure_psnr

EDGE_STEP = 0.15  # minimum difference of neighbouring pixels at an edge, of a range of 2
MOTION_STEP = 0.1  # minimum difference of a moving pixel from its median over time
CROPS = SampleSpec((SQUARE,), frames=9, crop=96, batch=4, capacity=8)


def find_edges(clip: Tensor) -> Tensor:
    """Pixels within two pixels of an edge: bool [1, 1, frames, height, width]."""
    down = F.pad(clip.diff(dim=3).abs().amax(1, keepdim=True), (0, 0, 1, 0))
    across = F.pad(clip.diff(dim=4).abs().amax(1, keepdim=True), (1, 0))
    return F.max_pool3d(torch.maximum(down, across), (1, 5, 5), 1, (0, 2, 2)) > EDGE_STEP


def find_motion(clip: Tensor) -> Tensor:
    still = clip.median(dim=2, keepdim=True).values
    return (clip - still).abs().amax(1, keepdim=True) > MOTION_STEP


@torch.no_grad()
def locate_error(vae: AutoencoderKLWan, clip: Tensor) -> dict[str, float]:
    """The shares of the frame, and of the squared error, at edges and in moving parts."""
    output = decode_latents(vae, encode_clips(vae, clip)[0]).clamp(-1, 1)
    error = (output - clip).square().mean(1, keepdim=True)
    shares = {}
    for name, mask in (("edges", find_edges(clip)), ("motion", find_motion(clip))):
        shares[f"{name}_area"] = mask.float().mean().item()
        shares[f"{name}_error"] = (error * mask).sum().item() / error.sum().item()
    first, rest = (
        measure_psnr(output[:, :, :1], clip[:, :, :1]),
        measure_psnr(output[:, :, 1:], clip[:, :, 1:]),
    )
    return {
        "psnr_db": measure_psnr(output, clip).item(),
        "first_frame_gain_db": (first - rest).item(),
        **shares,
    }


def overfit_decoder(vae: AutoencoderKLWan, buffer: ClipBuffer, steps: int) -> list[float]:
    """The PSNR of the buffer's clips, every ten steps of training the decoder on them alone."""
    vae = copy.deepcopy(vae)
    trainable = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
    optimizer = make_optimizer(vae, trainable, RATES)
    return _optimise(vae, buffer, torch.zeros_like(buffer.means), optimizer.step, steps)


def optimise_latents(vae: AutoencoderKLWan, buffer: ClipBuffer, steps: int) -> list[float]:
    """The same PSNR for a fixed decoder and free latents."""
    offset = torch.zeros_like(buffer.means).requires_grad_(True)
    adam = torch.optim.Adam([offset], lr=0.03)

    def step(scale: float) -> None:
        adam.param_groups[0]["lr"] = 0.03 * scale
        adam.step()

    return _optimise(vae, buffer, offset, step, steps)


def _optimise(
    vae: AutoencoderKLWan, buffer: ClipBuffer, offset: Tensor, update: Callable[[float], None], steps: int
) -> list[float]:
    curve = []
    for step in range(steps + 1):
        psnr = measure_psnr(decode_latents(vae, buffer.means + offset), to_unit(buffer.frames)).mean()
        if step % 10 == 0:
            curve.append(psnr.item())
        vae.zero_grad()
        offset.grad = None
        (-psnr).backward()
        update(0.5 * (1 + math.cos(math.pi * step / (steps + 1))))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("src/filmgate/models/shipped/flipbook"))
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument("--clips", type=int, default=8, help="held-out clips whose error is located")
    parser.add_argument("--steps", type=int, default=60, help="of each optimisation; 0 for none")
    options = parser.parse_args()
    run = TrainingRun.open(options.work)
    vae, _ = load_trainable_vae(options.model, run.device)
    renderer, rng = Renderer(run.device), Random(99)
    for _ in range(options.clips):
        scene = sample_held_out_scene(rng, pair_share=0.3)
        shares = locate_error(vae, renderer.draw(plan_scenes([scene], SQUARE, rng)))
        run.log("error", setting=scene.setting, motion=scene.actors[0].motion, **shares)
    if options.steps:
        buffer = ClipBuffer(run, vae, CROPS, seed=0)
        buffer.refill(CROPS.capacity)
        for optimise in (overfit_decoder, optimise_latents):
            curve = [f"{psnr:.2f}" for psnr in optimise(vae, buffer, options.steps)]
            run.log("limit", of=optimise.__name__, psnr_every_ten_steps=" ".join(curve))


if __name__ == "__main__":
    main()
