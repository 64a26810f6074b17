"""Stage 6: fine-tunes the decoder of the VAE while the encoder is frozen.

The latents do not change, so the transformer of the same model folder needs no training. The checkpoint and
the results of an interrupted run are at most half a minute old.
"""

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

from training.flipbook import archive
from training.flipbook.clip_buffer import ClipBuffer, SampleSpec
from training.flipbook.decoder_variants import (
    Shape,
    Variant,
    VariantBenchmark,
    load_trainable_vae,
    read_timings,
)
from training.flipbook.muon import MuonWithAdamW, Rates
from training.flipbook.renderer import Format, Renderer, plan_scenes
from training.flipbook.scenes import sample_held_out_scene
from training.flipbook.time_box import Every, Pace, TimeBox, learning_rate_scale
from training.flipbook.train_vae import SQUARE, measure_reconstruction
from training.flipbook.trainer import update_average
from training.flipbook.training_run import TrainingRun, stage_parser
from training.flipbook.whole_clip import decode_latents, encode_clips, measure_psnr

TIMINGS = "variants.json"
WEIGHTS = Path("vae") / "diffusion_pytorch_model.safetensors"
CROPS = SampleSpec(
    (SQUARE, Format(384, 192, 33), Format(192, 384, 33)), frames=17, crop=128, batch=16, capacity=8192
)
RATES = Rates(matrices=2e-3, others=5e-4)
WHOLE = SampleSpec((SQUARE,), frames=33, crop=None, batch=4, capacity=1024)


@dataclass(frozen=True, slots=True)
class FinetunePlan:
    """Hyperparameters. Trains on crops around the actors first, and on whole frames at the end."""

    crops: SampleSpec = CROPS
    whole: SampleSpec = WHOLE
    crops_until: float = 0.65
    psnr_loss_from: float = 0.3  # from here to `psnr_loss_at` the loss changes gradually to the PSNR
    psnr_loss_at: float = 0.6
    rates: Rates = RATES
    warmup_steps: int = 200
    hold_until: float = 0.1
    average_decay: float = 0.999
    refill_steps: int = 16  # between two refills of two batches each; a clip is used eight times
    held_out_clips: int = 16
    measured_clips: int = 32
    benchmark_seconds: float = 150.0
    benchmarks_variants: bool = True


class HeldOutClips:
    """Clips that training never uses, encoded once."""

    def __init__(self, run: TrainingRun, vae: AutoencoderKLWan, clips: int, size: Format) -> None:
        self.run, renderer, rng = run, Renderer(run.device), Random(98)
        self.pairs = []
        for _ in range(clips):
            target = renderer.draw(plan_scenes([sample_held_out_scene(rng, pair_share=0.3)], size, rng))
            with torch.no_grad():
                self.pairs.append((encode_clips(vae, target)[0].float(), target))

    @torch.no_grad()
    def measure(self, vae: AutoencoderKLWan) -> float:
        """The mean PSNR in dB, in the precision of the training."""
        scores = []
        for latents, target in self.pairs:
            with self.run.autocast():
                output = decode_latents(vae, latents)
            scores.append(measure_psnr(output, target))
        return torch.stack(scores).mean().item()


def make_optimizer(vae: AutoencoderKLWan, trainable: list[Tensor], rates: Rates) -> MuonWithAdamW:
    """Muon for the matrices but the last: its rows are colours of pixels, which need not be orthogonal."""
    last = vae.decoder.conv_out.weight
    matrices = [weight for weight in trainable if weight.numel() > len(weight) and weight is not last]
    return MuonWithAdamW(matrices, trainable, rates)


class DecoderTrainer:
    """The decoder, its average, its optimiser and its position in the schedule. Can be resumed."""

    checkpoint = "decoder_training"

    def __init__(self, run: TrainingRun, model: Path, plan: FinetunePlan) -> None:
        self.run, self.model, self.plan = run, model, plan
        self.vae, self.trainable = load_trainable_vae(model, run.device)
        self.average = copy.deepcopy(self.vae).requires_grad_(False)
        self.average_weights = [
            *self.average.decoder.parameters(),
            *self.average.post_quant_conv.parameters(),
        ]
        self.optimizer = make_optimizer(self.vae, self.trainable, plan.rates)
        self.step, self.progress = 0, 0.0
        self.curve: list[dict[str, float]] = []

    def resume(self) -> None:
        state = self.run.load(self.checkpoint)
        if state is None:
            return
        self._load(self.trainable, state["weights"])
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
            "weights": [weight.detach() for weight in self.trainable],
            "average": self.average_weights,
            "optimizer": self.optimizer.state_dict(),
        }
        position = {"step": self.step, "progress": self.progress, "curve": self.curve}
        self.run.save(self.checkpoint, state | position)

    @property
    def is_whole(self) -> bool:
        return self.progress >= self.plan.crops_until

    def train_step(self, buffer: ClipBuffer, compute_loss: Callable[..., Tensor]) -> Tensor:
        plan = self.plan
        if self.step % plan.refill_steps == 0:
            buffer.refill(2 * buffer.spec.batch)
        batch = buffer.sample(buffer.spec.batch)
        share = (self.progress - plan.psnr_loss_from) / (plan.psnr_loss_at - plan.psnr_loss_from)
        psnr_weight = torch.full((), min(1.0, max(0.0, share)), device=self.run.device)
        with self.run.autocast():
            loss = compute_loss(self.vae, batch.latents, batch.frames, psnr_weight)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trainable, 1.0)
        scale = learning_rate_scale(
            self.progress, self.step, warmup_steps=plan.warmup_steps, hold_until=plan.hold_until
        )
        self.optimizer.step(scale)
        update_average(self.average_weights, self.trainable, plan.average_decay, self.step)
        self.step += 1
        return loss.detach()

    def train(self, box: TimeBox, write_results: Callable[[], None]) -> None:
        """Calls `write_results` after each checkpoint."""
        plan, run = self.plan, self.run
        held_out = HeldOutClips(run, self.vae, plan.held_out_clips, plan.whole.size)
        logging, saving, measuring, pace = Every(10), Every(25), Every(60), Pace()
        with closing(PhaseSchedule(self)) as schedule:
            while not box.is_over:
                self.progress = box.progress
                phase = schedule.now()
                loss = self.train_step(phase.buffer, phase.compute_loss)
                if logging.is_due():
                    self._log(loss.item(), phase, pace.read(self.step))
                if measuring.is_due():
                    self._measure(held_out, box.elapsed)
                if saving.is_due():
                    self.save()
                    write_results()
        self.progress = box.until
        self._measure(held_out, box.elapsed)
        self.save()

    def _log(self, loss: float, phase: "Phase", pace: float) -> None:
        self.run.log_loss(
            "finetune", loss, step=self.step, progress=self.progress, steps_per_second=pace,
            clips_drawn=phase.buffer.clips_drawn, variant=phase.variant.name, shape=phase.shape.name,
        )  # fmt: skip

    def _measure(self, held_out: HeldOutClips, seconds: float) -> None:
        point = {"step": self.step, "seconds": seconds, "held_out_db": held_out.measure(self.average)}
        self.curve.append(point)
        self.run.log("finetune", **point)


class Phase:
    """A part of the schedule with one SampleSpec: its buffer, and the variant of the decoder."""

    def __init__(self, trainer: DecoderTrainer, spec: SampleSpec, variant: Variant) -> None:
        self.trainer, self.shape = trainer, Shape(spec.batch, spec.size)
        self.buffer = ClipBuffer(trainer.run, trainer.vae, spec, seed=trainer.step)
        self.buffer.refill(min(spec.capacity, 32 * spec.batch))
        self.use(variant)

    def use(self, variant: Variant) -> None:
        """Switch to a variant; switch to the plain one if its first step fails."""
        self.variant, self.compute_loss = variant, variant.prepare(self.trainer.vae)
        if variant == Variant():
            return
        try:
            self.trainer.train_step(self.buffer, self.compute_loss)
        except RuntimeError as error:
            self.trainer.run.log("finetune", failed=variant.name, error=f"{error!r:.200}")
            self.use(Variant())


class PhaseSchedule:
    """Crops first, then whole frames; the plain variant first, then the fastest one of the benchmark."""

    def __init__(self, trainer: DecoderTrainer) -> None:
        self.trainer, plan = trainer, trainer.plan
        self.variant, self.polling = Variant(), Every(1)
        self.phase: Phase | None = None
        self.benchmark: VariantBenchmark | None = None
        if plan.benchmarks_variants:
            shapes = [Shape(spec.batch, spec.size) for spec in (plan.crops, plan.whole)]
            report = trainer.run.folder / TIMINGS
            self.benchmark = VariantBenchmark.start(trainer.model, shapes, report, plan.benchmark_seconds)

    def now(self) -> Phase:
        plan = self.trainer.plan
        spec = plan.whole if self.trainer.is_whole else plan.crops
        if self.phase is None or self.phase.buffer.spec != spec:
            self.phase = None  # frees its memory before the next one is allocated
            self.phase = Phase(self.trainer, spec, self.variant)
        elif self.benchmark is not None and self.polling.is_due() and (variant := self.benchmark.choose()):
            self.benchmark, self.variant = None, variant
            self.phase.use(variant)
        return self.phase

    def close(self) -> None:
        if self.benchmark is not None:
            self.benchmark.stop()


def export_finetuned(trainer: DecoderTrainer, folder: Path) -> None:
    """Copy the model folder with the averaged decoder in half precision. Nothing else changes."""
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
class ResultWriter:
    """Writes the current results: the fine-tuned folder, an archive of its VAE, and a report."""

    trainer: DecoderTrainer
    out: Path
    before: dict[str, float]

    @property
    def folder(self) -> Path:
        return self.trainer.run.folder / "finetuned"

    def write(self, after: dict[str, float] | None = None) -> None:
        export_finetuned(self.trainer, self.folder)
        self.out.mkdir(parents=True, exist_ok=True)
        archive.pack([self.folder / "vae"], self.out, "finetune")
        report = {
            "step": self.trainer.step,
            "progress": self.trainer.progress,
            "before": self.before,
            "after": after,
            "curve": self.trainer.curve,
            "milliseconds": read_timings(self.trainer.run.folder / TIMINGS),
        }
        (self.out / "finetune.json").write_text(json.dumps(report, indent=1))


def measure_folder(run: TrainingRun, model: Path, plan: FinetunePlan) -> dict[str, float]:
    """The held-out reconstruction of the VAE in a model folder, measured as in `train_vae`."""
    vae, _ = load_trainable_vae(model, run.device)
    return measure_reconstruction(vae, Renderer(run.device), plan.measured_clips, plan.whole.size)


def finetune(run: TrainingRun, model: Path, plan: FinetunePlan, box: TimeBox, out: Path) -> Path:
    """Train for the seconds of `box`, which start with the first step, and return the fine-tuned folder."""
    trainer = DecoderTrainer(run, model, plan)
    trainer.resume()
    before = measure_folder(run, model, plan)
    run.log("before", **before)
    writer = ResultWriter(trainer, out, before)
    trainer.train(replace(box, starts_at=trainer.progress), writer.write)
    writer.write()
    after = measure_folder(run, writer.folder, plan)
    run.log("after", **after)
    writer.write(after)
    return writer.folder


def main() -> None:
    parser = stage_parser(__doc__)
    parser.add_argument(
        "--from", dest="model", type=Path, help="default: the folder `model` in the work folder"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the archive and the report; default: the work folder"
    )
    options = parser.parse_args()
    run = TrainingRun.open(options.work)
    benchmarks_variants = not options.no_compile and run.device.type == "cuda"
    plan = FinetunePlan(benchmarks_variants=benchmarks_variants)
    model = options.model or options.work / "model"
    finetune(run, model, plan, TimeBox(options.seconds, until=options.until), options.out or options.work)


if __name__ == "__main__":
    main()
