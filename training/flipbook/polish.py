"""Stage 6: the decoder alone learns on, against the frozen encoder, until its pictures are sharp.

The latents stay what they are, so the transformer of the same model folder needs no training. What a killed
call leaves behind, in the work folder and in the folder for results, is at most half a minute old.
"""

import argparse
import copy
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.flipbook import parcel
from training.flipbook.kernels import Shape, Tryout, Way, load_learner, read_findings
from training.flipbook.muon import Duet, Rates
from training.flipbook.reel import Cut, Reel
from training.flipbook.renderer import Format, Renderer, plan_shot
from training.flipbook.time_box import Every, Pace, TimeBox, learning_rate_scale
from training.flipbook.train_vae import SQUARE, measure_reconstruction
from training.flipbook.whole_clip import decode_latents, encode_clips
from training.flipbook.workshop import Workshop
from training.flipbook.world import sample_held_out_scene

KERNELS = "kernels.json"
WEIGHTS = Path("vae") / "diffusion_pytorch_model.safetensors"
CROPS = Cut((SQUARE, Format(384, 192, 33), Format(192, 384, 33)), frames=17, crop=128, batch=16, slots=8192)
RATES = Rates(matrices=2e-3, others=5e-4)
WHOLE = Cut((SQUARE,), frames=33, crop=None, batch=4, slots=1024)


@dataclass(frozen=True, slots=True)
class PolishPlan:
    """How the decoder is polished: crops that follow the actors first, whole frames at the end."""

    crops: Cut = CROPS
    whole: Cut = WHOLE
    crops_until: float = 0.65
    decibels_from: float = 0.3  # from here on the loss turns into the PSNR itself, bit by bit
    decibels_at: float = 0.6
    rates: Rates = RATES
    warmup_steps: int = 200
    hold_until: float = 0.1
    average_decay: float = 0.999
    refill_steps: int = 16  # between two refills of two batches each: a clip is seen eight times
    held_out_clips: int = 16
    judged_clips: int = 32
    tryout_seconds: float = 150.0
    is_tried_out: bool = True


class HeldOut:
    """A few clips that training never draws, encoded once."""

    def __init__(self, workshop: Workshop, vae: AutoencoderKLWan, clips: int, size: Format) -> None:
        self.workshop, renderer, rng = workshop, Renderer(workshop.device), Random(98)
        self.pairs = []
        for _ in range(clips):
            target = renderer.draw(plan_shot([sample_held_out_scene(rng, pair_share=0.3)], size, rng))
            with torch.no_grad():
                self.pairs.append((encode_clips(vae, target)[0].float(), target))

    @torch.no_grad()
    def measure(self, vae: AutoencoderKLWan) -> float:
        """Mean PSNR in dB, in training's precision."""
        scores = []
        for latents, target in self.pairs:
            with self.workshop.autocast():
                output = decode_latents(vae, latents)
            scores.append(-10 * torch.log10(((output.float().clamp(-1, 1) - target) / 2).square().mean()))
        return torch.stack(scores).mean().item()


class PolishTrainer:
    """The decoder, its average, its optimiser and its place in the schedule; everything to stop and go on."""

    checkpoint = "polish_training"

    def __init__(self, workshop: Workshop, model: Path, plan: PolishPlan) -> None:
        self.workshop, self.model, self.plan = workshop, model, plan
        self.vae, self.learning = load_learner(model, workshop.device)
        self.average = copy.deepcopy(self.vae).requires_grad_(False)
        self.average_weights = [
            *self.average.decoder.parameters(),
            *self.average.post_quant_conv.parameters(),
        ]
        # The last layer's rows are colours of pixels, which have no reason to be orthogonal.
        last = self.vae.decoder.conv_out.weight
        matrices = [one for one in self.learning if one.numel() > len(one) and one is not last]
        self.optimizer = Duet(matrices, self.learning, plan.rates)
        self.step, self.progress = 0, 0.0
        self.curve: list[dict[str, float]] = []

    def resume(self) -> None:
        state = self.workshop.load(self.checkpoint)
        if state is None:
            return
        self._load(self.learning, state["weights"])
        self._load(self.average_weights, state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.progress, self.curve = state["step"], state["progress"], state["curve"]
        torch.manual_seed(self.step)

    @staticmethod
    @torch.no_grad()
    def _load(weights: list[Tensor], saved: list[Tensor]) -> None:
        for weight, value in zip(weights, saved, strict=True):
            weight.copy_(value)

    def save(self) -> None:
        state: dict[str, Any] = {
            "weights": [weight.detach() for weight in self.learning],
            "average": self.average_weights,
            "optimizer": self.optimizer.state_dict(),
        }
        place = {"step": self.step, "progress": self.progress, "curve": self.curve}
        self.workshop.save(self.checkpoint, state | place)

    @property
    def is_whole(self) -> bool:
        return self.progress >= self.plan.crops_until

    def train_step(self, reel: Reel, find_loss: Callable[..., Tensor]) -> Tensor:
        plan = self.plan
        if self.step % plan.refill_steps == 0:
            reel.refill(2 * reel.cut.batch)
        lesson = reel.sample(reel.cut.batch)
        share = (self.progress - plan.decibels_from) / (plan.decibels_at - plan.decibels_from)
        decibels = torch.full((), min(1.0, max(0.0, share)), device=self.workshop.device)
        with self.workshop.autocast():
            loss = find_loss(self.vae, lesson.latents, lesson.frames, decibels)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.learning, 1.0)
        scale = learning_rate_scale(
            self.progress, self.step, warmup_steps=plan.warmup_steps, hold_until=plan.hold_until
        )
        self.optimizer.step(scale)
        self._follow()
        self.step += 1
        return loss.detach()

    @torch.no_grad()
    def _follow(self) -> None:
        decay = min(self.plan.average_decay, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self.average_weights, self.learning, 1 - decay)

    def train(self, box: TimeBox, deliver: Callable[[], None]) -> None:
        """`deliver` is called every now and then, for whoever waits for results."""
        plan, workshop = self.plan, self.workshop
        held_out = HeldOut(workshop, self.vae, plan.held_out_clips, plan.whole.size)
        logging, saving, measuring, pace = Every(10), Every(25), Every(60), Pace()
        with closing(Courses(self)) as courses:
            while not box.is_over:
                self.progress = box.progress
                course = courses.now()
                loss = self.train_step(course.reel, course.find_loss)
                if logging.is_due():
                    self._log(loss.item(), course, pace.read(self.step))
                if measuring.is_due():
                    self._measure(held_out, box.elapsed)
                if saving.is_due():
                    self.save()
                    deliver()
        self.progress = box.until
        self._measure(held_out, box.elapsed)
        self.save()

    def _log(self, loss: float, course: "Course", pace: float) -> None:
        self.workshop.log_loss(
            "polish", loss, step=self.step, progress=self.progress, steps_per_second=pace,
            clips_drawn=course.reel.drawn, way=course.way.name, shape=course.shape.name,
        )  # fmt: skip

    def _measure(self, held_out: HeldOut, seconds: float) -> None:
        point = {"step": self.step, "seconds": seconds, "held_out_db": held_out.measure(self.average)}
        self.curve.append(point)
        self.workshop.log("polish", **point)


class Course:
    """One cut of the clips: its reel, and the decoder run on it in some way."""

    def __init__(self, trainer: PolishTrainer, cut: Cut, way: Way) -> None:
        self.trainer, self.shape = trainer, Shape(cut.batch, cut.size)
        self.reel = Reel(trainer.workshop, trainer.vae, cut, seed=trainer.step)
        self.reel.refill(min(cut.slots, 32 * cut.batch))
        self.take(way)

    def take(self, way: Way) -> None:
        """Run the decoder this way from now on, or in the plain one should it fail at the first step."""
        self.way, self.find_loss = way, way.prepare(self.trainer.vae)
        if way == Way():
            return
        try:
            self.trainer.train_step(self.reel, self.find_loss)
        except RuntimeError as problem:
            self.trainer.workshop.log("polish", failed=way.name, problem=f"{problem!r:.200}")
            self.take(Way())


class Courses:
    """Crops first, then whole frames; the plain way first, then the one that the tryout finds quickest."""

    def __init__(self, trainer: PolishTrainer) -> None:
        self.trainer, plan = trainer, trainer.plan
        self.way, self.looking = Way(), Every(1)
        self.course: Course | None = None
        self.tryout: Tryout | None = None
        if plan.is_tried_out:
            shapes = [Shape(cut.batch, cut.size) for cut in (plan.crops, plan.whole)]
            report = trainer.workshop.folder / KERNELS
            self.tryout = Tryout.start(trainer.model, shapes, report, plan.tryout_seconds)

    def now(self) -> Course:
        plan = self.trainer.plan
        cut = plan.whole if self.trainer.is_whole else plan.crops
        if self.course is None or self.course.reel.cut != cut:
            self.course = None  # gives its memory back before the next one takes some
            self.course = Course(self.trainer, cut, self.way)
        elif self.tryout is not None and self.looking.is_due() and (way := self.tryout.choose()):
            self.tryout, self.way = None, way
            self.course.take(way)
        return self.course

    def close(self) -> None:
        if self.tryout is not None:
            self.tryout.stop()


def export_polished(trainer: PolishTrainer, folder: Path) -> None:
    """The model folder with the averaged decoder in half precision; every other byte as it was."""
    shutil.copytree(trainer.model, folder, dirs_exist_ok=True)
    weights = load_file(trainer.model / WEIGHTS)
    for name, value in trainer.average.state_dict().items():
        if name.startswith(("decoder.", "post_quant_conv.")):
            weights[name] = value.to("cpu", torch.float16).contiguous()
    part = (folder / WEIGHTS).with_suffix(".part")
    save_file(weights, part, metadata={"format": "pt"})
    part.chmod(0o644)
    part.replace(folder / WEIGHTS)


@dataclass(slots=True)
class Delivery:
    """Results as far as they have come: the polished folder, and one parcel and one report of it."""

    trainer: PolishTrainer
    out: Path
    before: dict[str, float]

    @property
    def folder(self) -> Path:
        return self.trainer.workshop.folder / "polished"

    def deliver(self, after: dict[str, float] | None = None) -> None:
        export_polished(self.trainer, self.folder)
        self.out.mkdir(parents=True, exist_ok=True)
        parcel.pack([self.folder / "vae"], self.out, "polish")
        report = {
            "step": self.trainer.step,
            "progress": self.trainer.progress,
            "before": self.before,
            "after": after,
            "curve": self.trainer.curve,
            "milliseconds": read_findings(self.trainer.workshop.folder / KERNELS),
        }
        (self.out / "polish.json").write_text(json.dumps(report, indent=1))


def judge_folder(workshop: Workshop, model: Path, plan: PolishPlan) -> dict[str, float]:
    """Held-out reconstruction of the VAE in a model folder, as `train_vae` measures it."""
    vae, _ = load_learner(model, workshop.device)
    return measure_reconstruction(vae, Renderer(workshop.device), plan.judged_clips, plan.whole.size)


def polish(workshop: Workshop, model: Path, plan: PolishPlan, box: TimeBox, out: Path) -> Path:
    """`box` says how long to train and where in the schedule to stop; its time begins with the training.
    Returns the polished folder.
    """
    trainer = PolishTrainer(workshop, model, plan)
    trainer.resume()
    before = judge_folder(workshop, model, plan)
    workshop.log("before", **before)
    delivery = Delivery(trainer, out, before)
    trainer.train(replace(box, begins_at=trainer.progress), delivery.deliver)
    delivery.deliver()
    after = judge_folder(workshop, delivery.folder, plan)
    workshop.log("after", **after)
    delivery.deliver(after)
    return delivery.folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument(
        "--from", dest="model", type=Path, help="default: the folder `model` in the work folder"
    )
    parser.add_argument("--out", type=Path, help="for the parcel and the report; default: the work folder")
    parser.add_argument(
        "--seconds", type=float, required=True, help="wall-clock seconds for the training itself"
    )
    parser.add_argument(
        "--until", type=float, default=1.0, help="where in the whole schedule this call ends, 0 to 1"
    )
    parser.add_argument(
        "--no-compile", action="store_true", help="plain kernels, and no looking for better ones"
    )
    options = parser.parse_args()
    workshop = Workshop.open(options.work)
    is_tried_out = not options.no_compile and workshop.device.type == "cuda"
    plan = PolishPlan(is_tried_out=is_tried_out)
    model = options.model or options.work / "model"
    polish(workshop, model, plan, TimeBox(options.seconds, until=options.until), options.out or options.work)


if __name__ == "__main__":
    main()
