"""Compares Flipbook's clips at each quality level with those at `full`. Prints one JSON line.

Reports the share of full denoiser passes, the PSNR to `full`, and the scores of Flipbook's judge.
"""

import argparse
import json
import math
from collections.abc import Sequence

import numpy as np
import torch
from training.flipbook.evaluate import DEFAULT_FORMAT, MODEL, Frames, decode, load_pipeline
from training.flipbook.judge import judge_clip
from training.flipbook.prompts import EvalPrompt, write_eval_prompts
from training.flipbook.scoring import EvalResult, tally

from filmgate.pipeline.loading.families import family_of
from filmgate.pipeline.loading.quality import THRESHOLDS, Quality, apply_quality, reset_step_caches

LEVELS: tuple[Quality, ...] = ("full", "balanced", "draft")


@torch.inference_mode()
def make_clips(quality: Quality, prompts: Sequence[EvalPrompt], steps: int) -> tuple[list[Frames], float]:
    """The clips, and the share of denoiser passes that ran every block."""
    pipe = load_pipeline(MODEL, "cpu")
    family = family_of(type(pipe).__name__)
    assert family is not None
    apply_quality(pipe, family, quality)
    passes: list[int] = []
    pipe.transformer.blocks[-1].attn1.register_forward_hook(lambda *_: passes.append(1))
    clips = []
    for seed, prompt in enumerate(prompts):
        reset_step_caches(family.denoisers_of(pipe))
        latents = pipe(
            prompt.text,
            width=DEFAULT_FORMAT.width,
            height=DEFAULT_FORMAT.height,
            num_frames=DEFAULT_FORMAT.frames,
            num_inference_steps=steps,
            guidance_scale=1.0,
            generator=torch.Generator().manual_seed(seed),
            output_type="latent",
        ).frames
        clips.append(decode(pipe, latents[0]))
    return clips, len(passes) / (steps * len(prompts))


def psnr(clip: Frames, reference: Frames) -> float:
    """PSNR of two clips in dB; infinite if they are equal."""
    error = float(np.mean((clip.astype(np.float64) - reference) ** 2))
    return 10 * math.log10(255**2 / error) if error else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    prompts = write_eval_prompts(options.prompts)
    reference: list[Frames] = []
    levels = {}
    for level in LEVELS:
        clips, share = make_clips(level, prompts, options.steps)
        reference = reference or clips
        distances = [psnr(clip, other) for clip, other in zip(clips, reference, strict=True)]
        results = [EvalResult(prompt, judge_clip(clip)) for prompt, clip in zip(prompts, clips, strict=True)]
        levels[level] = {
            "threshold": THRESHOLDS.get(level),
            "share_of_full_passes": round(share, 3),
            "psnr_to_full_mean": round(float(np.mean(distances)), 2) if level != "full" else None,
            "psnr_to_full_worst": round(min(distances), 2) if level != "full" else None,
            "judged_right": {name: f"{count.right} of {count.of}" for name, count in tally(results).items()},
        }
    about = {"bench": "quality", "model": "flipbook", "device": "CPU", "torch": torch.__version__}
    print(json.dumps({**about, **vars(options), "levels": levels}))


if __name__ == "__main__":
    main()
