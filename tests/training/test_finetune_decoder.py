"""Decoder fine-tuning at toy size: stopped, resumed and exported; only the decoder changes."""

import json
import sys
from itertools import count
from random import Random

import pytest
import torch
from safetensors.torch import load_file
from training.flipbook import archive
from training.flipbook.clip_buffer import ClipBuffer, SampleSpec, to_unit, trim_plan
from training.flipbook.decoder_variants import (
    VARIANTS,
    Shape,
    Variant,
    VariantBenchmark,
    benchmark_variants,
    compute_loss,
    load_trainable_vae,
    read_timings,
)
from training.flipbook.export import check_folder
from training.flipbook.finetune_decoder import (
    WEIGHTS,
    DecoderTrainer,
    FinetunePlan,
    Phase,
    PhaseSchedule,
    finetune,
)
from training.flipbook.muon import Rates
from training.flipbook.networks import TINY
from training.flipbook.renderer import Format, Renderer, plan_scenes
from training.flipbook.scenes import Actor, Scene
from training.flipbook.time_box import TimeBox
from training.flipbook.training_run import TrainingRun
from training.flipbook.whole_clip import encode_clips

from tests.untrained_flipbook import export_untrained

TOY = Format(64, 64, 9)
CROPS = SampleSpec((TOY,), frames=5, crop=32, batch=2, capacity=6)
WHOLE = SampleSpec((TOY,), frames=9, crop=None, batch=1, capacity=4)
PLAN = FinetunePlan(
    CROPS, WHOLE, rates=Rates(2e-2, 5e-3), warmup_steps=2, refill_steps=4, held_out_clips=1, measured_clips=2,
    benchmarks_variants=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder with untrained networks."""
    torch.set_num_threads(1)
    return export_untrained(tmp_path_factory.mktemp("model") / "model", TINY)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """A training run in which the model was fine-tuned in two calls."""
    run = TrainingRun.open(tmp_path_factory.mktemp("finetune"))
    ticks = (
        count().__next__
    )  # a clock that counts steps, so the result does not depend on the speed of the machine
    finetune(run, model, PLAN, TimeBox(20, until=0.4, clock=ticks), run.folder / "out")
    finetune(run, model, PLAN, TimeBox(30, clock=ticks), run.folder / "out")
    return run


@pytest.fixture(scope="module")
def report(run):
    return json.loads((run.folder / "out" / "finetune.json").read_text())


def test_fine_tuning_raises_the_held_out_psnr(report):
    assert report["progress"] == 1.0
    assert report["after"]["psnr_db"] > report["before"]["psnr_db"] + 0.5


def test_stopped_fine_tuning_resumes_where_it_stopped(run, model, report):
    steps = [point["step"] for point in report["curve"]]
    assert steps == sorted(steps)
    assert 0 < steps[0] < steps[-1]
    trainer = DecoderTrainer(run, model, PLAN)
    trainer.resume()
    saved = run.require(DecoderTrainer.checkpoint)
    assert (trainer.step, trainer.progress) == (steps[-1], 1.0)
    assert all(torch.equal(*pair) for pair in zip(trainer.trainable, saved["weights"], strict=True))
    assert all(torch.equal(*pair) for pair in zip(trainer.average_weights, saved["average"], strict=True))
    momenta = [state for player in trainer.optimizer.optimizers for state in player.state.values()]
    assert len(momenta) == len(trainer.trainable)


def test_only_the_decoder_changes(run, model):
    finetuned = run.folder / "finetuned"
    for path in model.rglob("*.*"):
        if path != model / WEIGHTS:
            assert (finetuned / path.relative_to(model)).read_bytes() == path.read_bytes()
    before, after = load_file(model / WEIGHTS), load_file(finetuned / WEIGHTS)
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert before.keys() == after.keys()
    assert {value.dtype for value in after.values()} == {torch.float16}
    assert changed
    assert {name.split(".")[0] for name in changed} == {"decoder", "post_quant_conv"}


def test_the_fine_tuned_folder_is_a_stock_pipeline(run):
    check_folder(run.folder / "finetuned")


def test_the_archive_contains_the_fine_tuned_vae(run, tmp_path):
    archive.unpack(run.folder / "out", "finetune", tmp_path)
    assert (tmp_path / WEIGHTS).read_bytes() == (run.folder / "finetuned" / WEIGHTS).read_bytes()


def test_the_buffer_holds_frames_with_their_latents(run, model):
    vae, _ = load_trainable_vae(model, run.device)
    buffer = ClipBuffer(run, vae, CROPS, seed=1)
    buffer.refill(8)
    assert (buffer.clips_drawn, buffer.filled) == (8, 6)
    means, log_variance = encode_clips(vae, to_unit(buffer.frames))
    torch.testing.assert_close(buffer.means, means, atol=0.02, rtol=0)
    torch.testing.assert_close(buffer.stds, torch.exp(0.5 * log_variance), atol=0.02, rtol=0)
    before = buffer.frames.clone()
    buffer.refill(2)
    kept = [torch.equal(*pair) for pair in zip(before, buffer.frames, strict=True)]
    assert kept == [True, True, False, False, True, True]
    batch = buffer.sample(5)
    assert batch.latents.shape == (5, *buffer.means.shape[1:])
    assert all(any(torch.equal(clip, known) for known in buffer.frames) for clip in batch.frames)


def test_a_trimmed_plan_shows_the_same_motion_for_a_shorter_time():
    scene = Scene((Actor("ball", "red", "large", "right"),), "plain")
    scene_plan = plan_scenes([scene], Format(64, 64, 17), Random(0))
    renderer = Renderer()
    whole, part = renderer.draw(scene_plan), renderer.draw(trim_plan(scene_plan, 6, 5))
    assert part.shape[2] == 5
    torch.testing.assert_close(part, whole[:, :, 6:11], atol=0.02, rtol=0)


@pytest.mark.parametrize("variant", [Variant(), Variant(is_folded=True)])
def test_every_variant_gives_the_same_loss_and_gradients(model, variant):
    torch.manual_seed(0)
    batch, psnr_weight = None, torch.tensor(0.5)
    results = []
    for one in (Variant(), variant):
        vae, trainable = load_trainable_vae(model, torch.device("cpu"))
        batch = batch or Shape(2, Format(32, 32, 9)).random_batch(vae)
        loss = one.prepare(vae)(vae, batch.latents, batch.frames, psnr_weight)
        results.append((loss, *torch.autograd.grad(loss, trainable)))
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(plain, other, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("is_folded", [False, True])
def test_the_loss_is_one_graph_for_the_compiler(model, is_folded):
    vae, _ = load_trainable_vae(model, torch.device("cpu"))
    Variant(is_folded=is_folded).prepare(vae)
    batch = Shape(1, Format(32, 32, 5)).random_batch(vae)
    compiled = torch.compile(compute_loss, backend="eager", dynamic=False, fullgraph=True)
    arguments = vae, batch.latents, batch.frames, torch.tensor(1.0)
    torch.testing.assert_close(compiled(*arguments), compute_loss(*arguments))


def test_the_loss_becomes_the_psnr(model):
    vae, _ = load_trainable_vae(model, torch.device("cpu"))
    batch = Shape(2, Format(32, 32, 5)).random_batch(vae)
    at_the_end = compute_loss(vae, batch.latents, batch.frames, torch.tensor(1.0))
    clips = vae.decode(batch.latents).sample  # untrained, so no value is clamped
    error = ((clips - to_unit(batch.frames)) / 2).square().flatten(1).mean(1)
    psnr = -10 * torch.log10(error).mean()
    torch.testing.assert_close(
        psnr, 10 * torch.log10(torch.tensor(4.0)) - at_the_end * 100 / torch.tensor(10.0).log()
    )


def test_variants_are_timed_and_the_fastest_is_chosen(run, model, tmp_path):
    shapes = [Shape(1, Format(32, 32, 5)), Shape(1, TOY)]
    benchmark_variants(run, model, shapes, tmp_path / "found.json", [Variant(), Variant(is_folded=True)])
    found = read_timings(tmp_path / "found.json")
    assert set(found) == {"eager", "eager folded"}
    assert all(0 < milliseconds < 60_000 for milliseconds in found.values())
    script = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    report, findings = tmp_path / "made_up.json", json.dumps({"eager": 9.0, "compiled folded": 4.0})
    benchmark = VariantBenchmark([sys.executable, "-c", script, str(report), findings], report, 60)
    benchmark.child.wait()
    assert benchmark.choose() == VARIANTS["compiled folded"]


def test_a_variant_that_does_not_run_is_left_out(run, model, tmp_path, monkeypatch, capsys):
    def fail(_, __, variant, ___):
        if variant.is_folded:
            raise RuntimeError("no such kernel")
        return 3.0

    monkeypatch.setattr("training.flipbook.decoder_variants.time_variant", fail)
    benchmark_variants(
        run, model, [Shape(1, TOY)], tmp_path / "found.json", [Variant(), Variant(is_folded=True)]
    )
    assert read_timings(tmp_path / "found.json") == {"eager": 3.0}
    assert "eager folded does not run" in capsys.readouterr().err


def test_the_benchmark_ends_without_timings_if_no_variant_runs(run, model, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("training.flipbook.decoder_variants.time_variant", fail)
    benchmark_variants(run, model, [Shape(1, TOY), Shape(2, TOY)], tmp_path / "found.json", [Variant()])
    assert read_timings(tmp_path / "found.json") == {}


def test_without_timings_the_plain_variant_is_chosen(tmp_path):
    broken = VariantBenchmark([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "none.json", 60)
    broken.child.wait()
    assert broken.choose() == Variant()
    endless = VariantBenchmark(
        [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "none.json", 60
    )
    assert endless.choose() is None
    endless.box.started -= 60
    assert endless.choose() == Variant()
    assert endless.child.poll() is not None


def test_training_switches_to_the_fastest_variant(run, model, monkeypatch):
    found = Variant(is_folded=True)
    monkeypatch.setattr("training.flipbook.finetune_decoder.Every.is_due", lambda _: True)
    schedule = PhaseSchedule(DecoderTrainer(run, model, PLAN))
    schedule.benchmark = VariantBenchmark([sys.executable, "-c", ""], run.folder / "found.json", 60)
    assert schedule.now().variant == Variant()
    schedule.benchmark.child.wait()
    schedule.benchmark.report.write_text(json.dumps({found.name: 1.0}))
    assert schedule.now().variant == found
    assert schedule.trainer.step == 1
    schedule.trainer.progress = 1.0
    assert schedule.now().variant == found
    assert schedule.now().buffer.spec == WHOLE


def test_a_variant_that_fails_in_training_is_replaced_by_the_plain_one(run, model, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    trainer = DecoderTrainer(run, model, PLAN)
    monkeypatch.setattr(trainer, "train_step", fail)
    assert Phase(trainer, CROPS, Variant(is_folded=True)).variant == Variant()


def test_parse_inverts_the_name_of_a_shape():
    shape = Shape(16, Format(384, 192, 33))
    assert Shape.parse(shape.name) == shape
