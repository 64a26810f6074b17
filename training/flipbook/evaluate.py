"""Stage 6: the exported folder answers held-out prompts, denoised by stock diffusers and decoded as
`filmgate generate` does, and the judge measures the clips.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from diffusers import DiffusionPipeline, WanPipeline
from torch import Tensor

from filmgate.pipeline.decode.ladder import decode_frames
from filmgate.pipeline.ending import prepare
from training.flipbook.judge import Verdict, judge_clip
from training.flipbook.prompts import Question, write_questions, write_verb_questions
from training.flipbook.renderer import Format
from training.flipbook.sheet import lay_out, pick_frames, to_pixels
from training.flipbook.time_box import TimeBox
from training.flipbook.whole_clip import use_channels_last

MODEL = Path("src/filmgate/models/flipbook")
DEFAULT_FORMAT = Format(256, 256, 33)
STEPS = 10
Frames = npt.NDArray[np.uint8]

# What the model has to reach, in per cent.
TARGETS = {"colour": 95.0, "motion": 90.0, "setting": 95.0, "both present": 80.0}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked, and what the judge saw."""

    question: Question
    verdict: Verdict

    def score(self) -> dict[str, bool]:
        scene, verdict = self.question.scene, self.verdict
        scores = {"setting": verdict.setting == scene.setting}
        if len(scene.actors) == 1:
            actor = scene.actors[0]
            return {
                **scores,
                "colour": verdict.colour == actor.colour,
                "motion": verdict.motion == actor.motion,
            }
        places = [verdict.find(actor.colour) for actor in scene.actors]
        return {**scores, "both present": all(places), "relation": all(places) and _relation_holds(self)}


def _relation_holds(answer: Answer) -> bool:
    """Sides are measured by the centres; depth cannot be, so for it presence has to do."""
    first, second = (answer.verdict.find(actor.colour) for actor in answer.question.scene.actors)
    assert first is not None
    assert second is not None
    right, down = first.x.mean() - second.x.mean(), first.y.mean() - second.y.mean()
    return {
        "left of": right < -0.1,
        "right of": right > 0.1,
        "above": down < -0.1,
        "below": down > 0.1,
        "behind": True,
        "in front of": True,
    }[answer.question.scene.relation or "behind"]


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
    decoder, ready = prepare(
        pipeline.vae, latents, latents_per_chunk=2 if latents.device.type == "cpu" else 8
    )
    return to_pixels(torch.cat(list(decode_frames(decoder, ready)), dim=1))


def answer_all(
    pipeline: WanPipeline, questions: Sequence[Question], batch: int, guidance: float
) -> Iterator[tuple[Answer, Frames]]:
    for start in range(0, len(questions), batch):
        asked = questions[start : start + batch]
        clips = generate(pipeline, [q.prompt for q in asked], DEFAULT_FORMAT, seed=start, guidance=guidance)
        for question, clip in zip(asked, clips, strict=True):
            yield Answer(question, judge_clip(clip)), clip


def tabulate(answers: Sequence[Answer]) -> dict[str, float]:
    """Per cent right of each thing asked."""
    tallies: dict[str, list[bool]] = {}
    for answer in answers:
        for name, is_right in answer.score().items():
            tallies.setdefault(name, []).append(is_right)
    return {name: 100 * sum(marks) / len(marks) for name, marks in tallies.items()}


def print_table(table: dict[str, float], count: int) -> None:
    print(f"{count} held-out prompts, {STEPS} steps\n{'':14s} right   wanted")
    for name, value in sorted(table.items()):
        wanted = f"{TARGETS[name]:6.0f} %" if name in TARGETS else ""
        print(f"{name:14s} {value:5.1f} % {wanted}", flush=True)


def describe_miss(answer: Answer) -> str:
    wrong = [name for name, is_right in answer.score().items() if not is_right]
    seen = answer.verdict
    return f"{', '.join(wrong)}: {answer.question.prompt!r} -> {seen.setting}, {seen.colour}, {seen.motion}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop early, with what is judged by then"
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--guidance", type=float, default=1.0, help="above 1 for a model that was not distilled"
    )
    parser.add_argument(
        "--own-verbs", action="store_true", help="ask of swimming fish and driving cars alone"
    )
    parser.add_argument("--out", type=Path, help="folder for report.json and a contact sheet")
    options = parser.parse_args()

    pipeline = load_pipeline(options.model, options.device)
    answers, strips, box = [], [], TimeBox(options.seconds)
    questions = (write_verb_questions if options.own_verbs else write_questions)(options.prompts)
    for answer, clip in answer_all(pipeline, questions, options.batch, options.guidance):
        answers.append(answer)
        if len(strips) < 24:
            strips.append(pick_frames(clip, 5)[:, ::2, ::2])
        if not all(answer.score().values()):
            print(describe_miss(answer), flush=True)
        if box.is_over:
            break
    table = tabulate(answers)
    print_table(table, len(answers))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        lay_out(strips, [a.question.prompt for a in answers[:24]], 2).save(options.out / "sheet.png")
        report = {
            "table": table,
            "misses": [describe_miss(a) for a in answers if not all(a.score().values())],
        }
        report |= {"scenes": [asdict(a.question.scene) for a in answers]}
        (options.out / "report.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
