"""Compares Flipbook's clips at each quality level with those of `full`.

Reports the share of denoiser passes that were computed, the PSNR to `full`, and the scores of Flipbook's
judge. Weights in eight bits are compared in the same way. `--others` adds other ways to compute less: caches
of diffusers, EasyCache, and fewer steps. `--plan 0.2,0.1,3,1` adds a level with this `start_share`,
`end_share`, `interval` and `guidance_interval`.
"""

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
import typer
from training.flipbook.evaluate import MODEL, Frames, decode, load_pipeline
from training.flipbook.judge import judge_clip
from training.flipbook.prompts import EvalPrompt, write_eval_prompts
from training.flipbook.scoring import EvalResult, tally

from benchmarks.easy_cache import EasyCache, easy_cache
from benchmarks.report import JsonFlag, print_report, run
from filmgate.jobs import Size
from filmgate.models.quality import FULL, LEVELS, QualityLevel
from filmgate.pipeline.denoise.passes import PlannedPasses, planned_passes
from filmgate.pipeline.loading.quantization import FORMATS, quantize_blocks

Around = Callable[[], AbstractContextManager[None]]
"""What a way to compute less does around each clip."""
FIRST_BLOCK_THRESHOLDS = (0.05, 0.1)
MAG_THRESHOLDS = (0.01, 0.02, 0.06)
EASY_THRESHOLDS = (0.03, 0.05, 0.08)  # the authors use 0.05 for Wan 2.1


@dataclass(frozen=True, slots=True)
class Run:
    """The pipeline and the clips of one comparison."""

    pipe: Any
    prompts: Sequence[EvalPrompt]
    size: Size
    frames: int
    steps: int
    guidance: float

    @property
    def passes_per_step(self) -> int:
        return 2 if self.guidance > 1 else 1

    @torch.inference_mode()
    def make_clips(self, around: Around = nullcontext, steps: int | None = None) -> tuple[list[Frames], int]:
        """The clips, and how many passes ran every block."""
        passes: list[int] = []
        last = self.pipe.transformer.blocks[-1].attn1
        hook = last.register_forward_hook(lambda *_: passes.append(1))
        clips = []
        for seed, prompt in enumerate(self.prompts):
            with around():
                clips.append(self._make_clip(prompt, seed, steps or self.steps))
        hook.remove()
        return clips, len(passes)

    def _make_clip(self, prompt: EvalPrompt, seed: int, steps: int) -> Frames:
        latents = self.pipe(
            prompt.text,
            width=self.size.width,
            height=self.size.height,
            num_frames=self.frames,
            num_inference_steps=steps,
            guidance_scale=self.guidance,
            generator=torch.Generator().manual_seed(seed),
            output_type="latent",
        ).frames
        return decode(self.pipe, latents[0])


def at_level(run: Run, level: QualityLevel) -> Around:
    """The passes of a quality level."""
    return lambda: planned_passes(
        [run.pipe.transformer],
        PlannedPasses(level.plan(run.steps), run.pipe.scheduler, run.passes_per_step),
    )


def cached(run: Run, config: Any) -> Around:
    """A step cache of diffusers, empty at the start of each clip."""

    @contextmanager
    def around() -> Iterator[None]:
        run.pipe.transformer.enable_cache(config)
        try:
            yield
        finally:
            run.pipe.transformer.disable_cache()

    return around


def easily_cached(run: Run, threshold: float) -> Around:
    """EasyCache, empty at the start of each clip."""
    return lambda: easy_cache(run.pipe.transformer, EasyCache(threshold, run.steps, run.passes_per_step))


def read_mag_ratios(run: Run) -> list[float]:
    """Calibrate MagCache on the first prompt. diffusers prints the ratios; it does not return them."""
    from diffusers.hooks import MagCacheConfig

    printed = io.StringIO()
    config = MagCacheConfig(calibrate=True, num_inference_steps=run.steps)
    first = replace(run, prompts=run.prompts[:1])
    with redirect_stdout(printed):
        first.make_clips(cached(run, config))
    found = re.search(r"^\[([\d., ]+)\]", printed.getvalue(), re.MULTILINE)
    assert found is not None, "diffusers printed no ratios"
    return [float(ratio) for ratio in found[1].split(",")]


def psnr(clip: Frames, reference: Frames) -> float:
    """PSNR of two clips in dB; infinite if they are equal."""
    error = float(np.mean((clip.astype(np.float64) - reference) ** 2))
    return 10 * math.log10(255**2 / error) if error else math.inf


def compare(run: Run, levels: Sequence[QualityLevel], *, has_others: bool) -> dict[str, dict[str, object]]:
    """Every level, and the other ways if asked for, against the clips of `full`."""
    from diffusers import FirstBlockCacheConfig
    from diffusers.hooks import MagCacheConfig

    reference, whole = run.make_clips()

    def score(clips: list[Frames], passes: int) -> dict[str, object]:
        distances = [psnr(clip, other) for clip, other in zip(clips, reference, strict=True)]
        pairs = zip(run.prompts, clips, strict=True)
        judged = tally([EvalResult(prompt, judge_clip(clip)) for prompt, clip in pairs])
        return {
            "share_of_passes": round(passes / whole, 3),
            "psnr_mean": round(float(np.mean(distances)), 2),
            "psnr_worst": round(min(distances), 2),
            "judged_right": {name: f"{count.right} of {count.of}" for name, count in judged.items()},
        }

    found = {FULL: score(reference, whole)}
    for level in levels:
        found[level.name] = score(*run.make_clips(at_level(run, level)))
        steps = sum(step.with_prompt for step in level.plan(run.steps))
        if has_others and f"{steps} steps" not in found:
            found[f"{steps} steps"] = score(*run.make_clips(steps=steps))
    for weights in FORMATS:
        pipe = load_pipeline(MODEL, run.pipe.device)
        quantize_blocks([pipe.transformer], weights, run.pipe.device)
        found[f"{weights} weights"] = score(*replace(run, pipe=pipe).make_clips())
    if has_others:
        for threshold in FIRST_BLOCK_THRESHOLDS:
            around = cached(run, FirstBlockCacheConfig(threshold=threshold))
            found[f"first block {threshold:g}"] = score(*run.make_clips(around))
        ratios = read_mag_ratios(run)
        for threshold in MAG_THRESHOLDS:
            config = MagCacheConfig(threshold=threshold, num_inference_steps=run.steps, mag_ratios=ratios)
            found[f"MagCache {threshold:g}"] = score(*run.make_clips(cached(run, config)))
        for threshold in EASY_THRESHOLDS:
            found[f"EasyCache {threshold:g}"] = score(*run.make_clips(easily_cached(run, threshold)))
    return found


def parse_plan(text: str) -> QualityLevel:
    """A level from `start_share,end_share,interval,guidance_interval`."""
    start, end, interval, guidance = text.split(",")
    return QualityLevel(text, "", float(start), float(end), int(interval), int(guidance))


def main(  # noqa: PLR0913, PLR0917 - one argument per flag
    prompts: Annotated[int, typer.Option(min=1, help="Number of clips.")] = 6,
    steps: Annotated[int, typer.Option(min=1)] = 30,
    guidance: Annotated[float, typer.Option()] = 1.0,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT.")] = "256x256",
    frames: Annotated[int, typer.Option(min=1)] = 33,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    has_others: Annotated[bool, typer.Option("--others", help="Add other ways to compute less.")] = False,
    plan: Annotated[
        list[QualityLevel] | None,
        typer.Option(parser=parse_plan, metavar="START,END,INTERVAL,GUIDANCE", help="Add this level."),
    ] = None,
    is_json: JsonFlag = False,
) -> None:
    """Compare the clips of each quality level with those of `full`."""
    pipe, eval_prompts = load_pipeline(MODEL, device), write_eval_prompts(prompts)
    work = Run(pipe, eval_prompts, Size.parse(size), frames, steps, guidance)
    levels = [level for level in LEVELS if level.name != FULL] + (plan or [])
    settings = {"prompts": prompts, "steps": steps, "guidance": guidance, "size": size, "frames": frames}
    settings |= {"model": "flipbook", "device": device, "torch": torch.__version__}
    print_report("quality", settings, compare(work, levels, has_others=has_others), {}, is_json=is_json)


if __name__ == "__main__":
    run(main)
