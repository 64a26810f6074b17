"""Stage 7: the model folder answers held-out prompts, denoised by stock diffusers and decoded as
`filmgate generate` does, and the judge measures the clips.
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
from filmgate.pipeline.decode.ladder import decode_frames
from training.flipbook.judge import judge_clip
from training.flipbook.marks import Answer, describe_miss, print_table, tally
from training.flipbook.prompts import Question, write_questions, write_verb_questions
from training.flipbook.renderer import Format
from training.flipbook.sheet import lay_out, pick_frames, to_pixels
from training.flipbook.time_box import Every, TimeBox
from training.flipbook.whole_clip import use_channels_last

MODEL = Path("src/filmgate/models/shipped/flipbook")
DEFAULT_FORMAT = Format(256, 256, 33)
STEPS = 10
SHEET_CLIPS = 24
Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Exam:
    """Who is asked, where, and how."""

    model: Path = MODEL
    device: str = "cpu"
    guidance: float = 1.0
    size: Format = DEFAULT_FORMAT


@dataclass(frozen=True, slots=True)
class Paper:
    """One answer with its number among the questions, and five small frames of the clip."""

    number: int
    answer: Answer
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
    """Clips as uint8 [frames, height, width, 3], each from its own seed so that batching changes nothing."""
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
    """Several latent frames at a time: the stock decode up to rounding, in a third of the time."""
    decoder = open_decoder(pipeline.vae, latents_per_chunk=2 if latents.device.type == "cpu" else 8)
    ready = decoder.to_vae_latents(latents.to(pipeline.vae.dtype))
    return to_pixels(torch.cat(list(decode_frames(decoder, ready)), dim=1))


@cache
def _candidate(exam: Exam) -> WanPipeline:
    """One pipeline a process."""
    return load_pipeline(exam.model, exam.device)


def answer_batch(exam: Exam, first: int, questions: Sequence[Question]) -> list[Paper]:
    """Answer questions that follow one another; a question's number is its seed."""
    prompts = [question.prompt for question in questions]
    clips = generate(_candidate(exam), prompts, exam.size, seed=first, guidance=exam.guidance)
    return [
        Paper(first + index, Answer(question, judge_clip(clip)), pick_frames(clip, 5)[:, ::2, ::2])
        for index, (question, clip) in enumerate(zip(questions, clips, strict=True))
    ]


def answer_all(
    exam: Exam, questions: Sequence[Question], batch: int, processes: int = 1
) -> Iterator[list[Paper]]:
    """Batches as they are judged: in order from one process, in any order from several."""
    starts = range(0, len(questions), batch)
    if processes == 1:
        for first in starts:
            yield answer_batch(exam, first, questions[first : first + batch])
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_share_cores, initargs=(processes,))
    try:
        asked = [pool.submit(answer_batch, exam, n, questions[n : n + batch]) for n in starts]
        for task in as_completed(asked):
            yield task.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _share_cores(processes: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))


@dataclass(slots=True)
class Report:
    """The papers so far, and the folder in which whoever cannot wait finds their table and contact sheet."""

    out: Path | None
    papers: list[Paper] = field(default_factory=list)

    def add(self, papers: Sequence[Paper]) -> None:
        self.papers = sorted([*self.papers, *papers], key=lambda paper: paper.number)

    @property
    def answers(self) -> list[Answer]:
        return [paper.answer for paper in self.papers]

    def write(self) -> None:
        if self.out is None:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        shown = self.papers[:SHEET_CLIPS]
        captions = [paper.answer.question.prompt for paper in shown]
        lay_out([paper.strip for paper in shown], captions, 2).save(self.out / "sheet.png")
        misses = [describe_miss(answer) for answer in self.answers if not all(answer.score().values())]
        report = {
            "prompts": len(self.papers),
            "steps": STEPS,
            "table": {name: asdict(mark) for name, mark in tally(self.answers).items()},
            "misses": misses,
            "numbers": [paper.number for paper in self.papers],
            "scenes": [asdict(answer.question.scene) for answer in self.answers],
        }
        (self.out / "report.json").write_text(json.dumps(report, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop early, with what is judged by then"
    )
    parser.add_argument("--batch", type=int, default=1, help="prompts denoised together")
    parser.add_argument("--processes", type=int, default=1, help="batches answered at a time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--guidance", type=float, default=1.0, help="above 1 for a model that was not distilled"
    )
    parser.add_argument(
        "--own-verbs", action="store_true", help="ask of swimming fish and driving cars alone"
    )
    parser.add_argument("--out", type=Path, help="folder for report.json and a contact sheet")
    options = parser.parse_args()

    exam = Exam(options.model, options.device, options.guidance)
    report, box, writing = Report(options.out), TimeBox(options.seconds), Every(10)
    questions = (write_verb_questions if options.own_verbs else write_questions)(options.prompts)
    for papers in answer_all(exam, questions, options.batch, options.processes):
        report.add(papers)
        for paper in papers:
            if not all(paper.answer.score().values()):
                print(describe_miss(paper.answer), flush=True)
        if writing.is_due():
            report.write()
        if box.is_over:
            break
    print(f"{len(report.papers)} held-out prompts, {STEPS} steps, in {box.elapsed:.0f} s on {exam.device}")
    print_table(tally(report.answers))
    report.write()


if __name__ == "__main__":
    main()
