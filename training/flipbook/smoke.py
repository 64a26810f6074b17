"""Runs every stage for a few seconds at its real batch size, and reports its speed and memory.

A section that fails is reported, and the next ones still run, so that one run tests everything.
"""

import argparse
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
from PIL import Image

from training.flipbook import build_pool, evaluate, export
from training.flipbook.clip_formats import SHARES
from training.flipbook.distill import DistillTrainer
from training.flipbook.networks import TINY, Sizes
from training.flipbook.renderer import Format, Renderer, plan_scenes
from training.flipbook.scenes import sample_training_scene
from training.flipbook.sheet import catalogue_scenes, to_pixels
from training.flipbook.time_box import TimeBox
from training.flipbook.train_transformer import FlowPlan, FlowTrainer
from training.flipbook.train_vae import VaePlan, VaeTrainer, finish_vae
from training.flipbook.training_run import TrainingRun

TOY = Format(64, 64, 9)


@dataclass(frozen=True, slots=True)
class Smoke:
    """Uses real sizes on a GPU, and toy sizes on a CPU."""

    run: TrainingRun
    out: Path
    is_real: bool
    compiles: bool

    @property
    def sizes(self) -> Sizes:
        return Sizes() if self.is_real else TINY

    @property
    def vae_plan(self) -> VaePlan:
        return VaePlan(is_compiled=False) if self.is_real else VaePlan(64, 2, 1, whole=TOY, is_compiled=False)

    @property
    def pool_plan(self) -> build_pool.PoolPlan:
        return (
            build_pool.PoolPlan(clips=1536)
            if self.is_real
            else build_pool.PoolPlan(8, 2, shares=((TOY, 1.0),))
        )

    @property
    def flow_plan(self) -> FlowPlan:
        return FlowPlan(is_compiled=False, batch=256 if self.is_real else 4)

    def time_steps(self, name: str, step: Callable[[], object], seconds: float) -> None:
        """Log the first step, which allocates, tunes and compiles, and the speed of the following ones."""
        run = self.run
        if run.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        first = TimeBox(1)
        step()
        run.synchronize()
        first_seconds = first.elapsed
        box, count = TimeBox(seconds), 0
        while not box.is_over:
            step()
            run.synchronize()
            count += 1
        pace = count / box.elapsed
        run.log(
            name, first_seconds=first_seconds, steps_per_second=pace, steps_in_300_seconds=300 * pace,
            peak_gib=run.peak_gib(),
        )  # fmt: skip


def try_renderer(smoke: Smoke) -> None:
    renderer, rng = Renderer(smoke.run.device), Random(0)
    stills = renderer.draw(plan_scenes(catalogue_scenes(), Format(128, 128, 5), rng))
    rows = [torch.cat(list(stills[row : row + 6, :, -1:]), dim=3) for row in range(0, 18, 6)]
    Image.fromarray(to_pixels(torch.cat(rows, dim=2))[0]).save(smoke.out / "catalogue.png")
    batch = smoke.pool_plan.batch
    for size in list(SHARES)[:2]:
        scenes = [sample_training_scene(rng) for _ in range(batch)]
        scene_plan = plan_scenes(scenes, size, rng)
        smoke.time_steps(
            f"render {size.width}x{size.height} x{batch}",
            lambda scene_plan=scene_plan: renderer.draw(scene_plan),
            2,
        )  # type: ignore[misc]


def try_vae(smoke: Smoke) -> None:
    trainer = VaeTrainer(smoke.run, smoke.sizes, smoke.vae_plan)
    smoke.time_steps("vae crops eager", trainer.train_step, 5)
    trainer.progress = 0.9
    smoke.time_steps("vae whole eager", trainer.train_step, 4)
    trainer.save()
    finish_vae(smoke.run, trainer, clips=64 if smoke.is_real else 8)


def try_pool(smoke: Smoke) -> None:
    build_pool.build_pool(smoke.run, smoke.pool_plan, 30)


def try_flow(smoke: Smoke) -> None:
    trainer = FlowTrainer(smoke.run, smoke.sizes, smoke.flow_plan)
    smoke.time_steps("flow eager", trainer.train_step, 4)
    trainer.save()
    student = DistillTrainer(smoke.run, smoke.sizes, smoke.flow_plan)
    smoke.time_steps("distill eager", student.train_step, 2)
    student.save()


def try_export(smoke: Smoke) -> None:
    folder = smoke.run.folder / "model"
    pipeline = export.assemble(smoke.run, smoke.sizes, DistillTrainer.checkpoint)
    smoke.run.log("export", megabytes=export.export(pipeline, folder) / 1e6)
    export.check_folder(folder)
    if smoke.is_real:
        pipeline = evaluate.load_pipeline(folder, smoke.run.device.type)
        prompts = ["a red ball"] * 16
        box = TimeBox(1)
        evaluate.generate(pipeline, prompts, evaluate.DEFAULT_FORMAT, seed=0)
        smoke.run.log("generate", clips_per_second=len(prompts) / box.elapsed)


def try_compiled_flow(smoke: Smoke) -> None:
    trainer = FlowTrainer(smoke.run, smoke.sizes, replace(smoke.flow_plan, is_compiled=smoke.compiles))
    smoke.time_steps("flow compiled", trainer.train_step, 6)


def try_compiled_vae(smoke: Smoke) -> None:
    trainer = VaeTrainer(smoke.run, smoke.sizes, replace(smoke.vae_plan, is_compiled=smoke.compiles))
    smoke.time_steps("vae crops compiled", trainer.train_step, 6)


SECTIONS = (try_renderer, try_vae, try_pool, try_flow, try_export, try_compiled_flow, try_compiled_vae)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument("--out", type=Path, default=Path("out/smoke"))
    parser.add_argument(
        "--seconds", type=float, default=150, help="sections that would start later are skipped"
    )
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    box = TimeBox(options.seconds)
    run = TrainingRun.open(options.work / "smoke")
    options.out.mkdir(parents=True, exist_ok=True)
    smoke = Smoke(run, options.out, run.device.type == "cuda", not options.no_compile)
    failed = []
    for section in SECTIONS:
        if box.is_over:
            run.log("smoke", skipped=section.__name__)
            continue
        started = time.monotonic()
        try:
            section(smoke)
        except Exception:  # noqa: BLE001 - the process edge: report it and run the next section
            traceback.print_exc()
            failed.append(section.__name__)
        run.log("smoke", section=section.__name__, took_seconds=time.monotonic() - started)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
