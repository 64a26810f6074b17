"""Stage 7: evaluates a model folder on held-out prompts.

Stock diffusers denoises, the decoder of `filmgate generate` decodes, and the judge measures the clips.
"""

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from diffusers import DiffusionPipeline, WanPipeline
from torch import Tensor

from filmgate.pipeline.decode import open_decoder
from filmgate.pipeline.decode.base import decode_frames
from training.flipbook.judge import judge_clip
from training.flipbook.prompts import EvalPrompt, write_eval_prompts, write_verb_prompts
from training.flipbook.renderer import Format
from training.flipbook.scoring import EvalResult, describe_miss, print_table, tally
from training.flipbook.sheet import draw_sheet, pick_frames, to_pixels
from training.flipbook.time_box import Every, TimeBox
from training.flipbook.whole_clip import use_channels_last

MODEL = Path("src/filmgate/models/shipped/flipbook")
DEFAULT_FORMAT = Format(256, 256, 33)
STEPS = 10
SHEET_CLIPS = 24
Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The model to evaluate and how to run it."""

    model: Path = MODEL
    device: str = "cpu"
    guidance: float = 1.0
    size: Format = DEFAULT_FORMAT


@dataclass(frozen=True, slots=True)
class EvaluatedClip:
    """The result of one prompt with the number of the prompt, and five small frames of the clip."""

    number: int
    result: EvalResult
    strip: Frames


def load_pipeline(folder: Path, device: str) -> WanPipeline:
    pipeline = DiffusionPipeline.from_pretrained(folder, local_files_only=True).to(device)
    pipeline.set_progress_bar_config(disable=True)
    if device == "cpu":
        use_channels_last(pipeline.vae)
    return pipeline


def generate(
    pipeline: WanPipeline, prompts: Sequence[str], size: Format, *, seed: int, guidance: float = 1.0
) -> list[Frames]:
    """Clips as uint8 [frames, height, width, 3]. Each has its own seed, so batching changes nothing."""
    generators = [torch.Generator().manual_seed(seed + index) for index in range(len(prompts))]
    latents = pipeline(
        list(prompts),
        width=size.width,
        height=size.height,
        num_frames=size.frames,
        num_inference_steps=STEPS,
        guidance_scale=guidance,
        generator=generators,
        output_type="latent",
    ).frames
    return [decode(pipeline, one) for one in latents]


def decode(pipeline: WanPipeline, latents: Tensor) -> Frames:
    """Decode with several latent frames per chunk: a third of the time, equal to diffusers up to rounding."""
    decoder = open_decoder(pipeline.vae, latents_per_chunk=2 if latents.device.type == "cpu" else 8)
    ready = decoder.to_vae_latents(latents.to(pipeline.vae.dtype))
    return to_pixels(torch.cat(list(decode_frames(decoder, ready)), dim=1))


@cache
def _pipeline(evaluation: Evaluation) -> WanPipeline:
    """One pipeline per process."""
    return load_pipeline(evaluation.model, evaluation.device)


def evaluate_batch(evaluation: Evaluation, first: int, prompts: Sequence[EvalPrompt]) -> list[EvaluatedClip]:
    """Evaluate consecutive prompts. The number of a prompt is its seed."""
    texts = [prompt.text for prompt in prompts]
    clips = generate(_pipeline(evaluation), texts, evaluation.size, seed=first, guidance=evaluation.guidance)
    return [
        EvaluatedClip(first + index, EvalResult(prompt, judge_clip(clip)), pick_frames(clip, 5)[:, ::2, ::2])
        for index, (prompt, clip) in enumerate(zip(prompts, clips, strict=True))
    ]


def evaluate_all(
    evaluation: Evaluation, prompts: Sequence[EvalPrompt], batch: int, processes: int = 1
) -> Iterator[list[EvaluatedClip]]:
    """Yield batches as they are judged: in order with one process, in any order with several."""
    starts = range(0, len(prompts), batch)
    if processes == 1:
        for first in starts:
            yield evaluate_batch(evaluation, first, prompts[first : first + batch])
        return
    # torch is imported once, by the parent of the processes.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([evaluate_batch.__module__])
    pool = ProcessPoolExecutor(processes, context, initializer=_share_cores, initargs=(processes,))
    try:
        tasks = [pool.submit(evaluate_batch, evaluation, n, prompts[n : n + batch]) for n in starts]
        for task in as_completed(tasks):
            yield task.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _share_cores(processes: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))


@dataclass(slots=True)
class Report:
    """The clips evaluated so far; `write` stores their table and contact sheet in the folder `out`."""

    out: Path | None
    clips: list[EvaluatedClip] = field(default_factory=list)

    def add(self, clips: Sequence[EvaluatedClip]) -> None:
        self.clips = sorted([*self.clips, *clips], key=lambda clip: clip.number)

    @property
    def results(self) -> list[EvalResult]:
        return [clip.result for clip in self.clips]

    def write(self) -> None:
        if self.out is None:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        shown = self.clips[:SHEET_CLIPS]
        captions = [clip.result.prompt.text for clip in shown]
        draw_sheet([clip.strip for clip in shown], captions, 2).save(self.out / "sheet.png")
        misses = [describe_miss(result) for result in self.results if not all(result.score().values())]
        report = {
            "prompts": len(self.clips),
            "steps": STEPS,
            "table": {name: asdict(count) for name, count in tally(self.results).items()},
            "misses": misses,
            "numbers": [clip.number for clip in self.clips],
            "scenes": [asdict(result.prompt.scene) for result in self.results],
        }
        (self.out / "report.json").write_text(json.dumps(report, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="stop after this many seconds and report the prompts judged so far",
    )
    parser.add_argument("--batch", type=int, default=1, help="prompts per batch")
    parser.add_argument("--processes", type=int, default=1, help="batches evaluated in parallel")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--guidance", type=float, default=1.0, help="above 1 for a model without distilled guidance"
    )
    parser.add_argument(
        "--own-verbs", action="store_true", help="use only prompts with own verbs, such as a swimming fish"
    )
    parser.add_argument("--out", type=Path, help="folder for report.json and a contact sheet")
    options = parser.parse_args()

    evaluation = Evaluation(options.model, options.device, options.guidance)
    report, box, writing = Report(options.out), TimeBox(options.seconds), Every(10)
    prompts = (write_verb_prompts if options.own_verbs else write_eval_prompts)(options.prompts)
    for clips in evaluate_all(evaluation, prompts, options.batch, options.processes):
        report.add(clips)
        for clip in clips:
            if not all(clip.result.score().values()):
                print(describe_miss(clip.result), flush=True)
        if writing.is_due():
            report.write()
        if box.is_over:
            break
    print(
        f"{len(report.clips)} held-out prompts, {STEPS} steps, in {box.elapsed:.0f} s on {evaluation.device}"
    )
    print_table(tally(report.results))
    report.write()


if __name__ == "__main__":
    main()
