"""The decoder is polished at toy size: stopped, taken up again, exported; all but the decoder stays."""

import json
import sys
from itertools import count
from random import Random

import pytest
import torch
from safetensors.torch import load_file
from training.flipbook import parcel
from training.flipbook.export import check_folder
from training.flipbook.kernels import (
    WAYS,
    Shape,
    Tryout,
    Way,
    find_loss,
    load_learner,
    read_findings,
    try_all,
)
from training.flipbook.muon import Rates
from training.flipbook.networks import TINY
from training.flipbook.polish import WEIGHTS, Course, Courses, PolishPlan, PolishTrainer, polish
from training.flipbook.reel import Cut, Reel, cut_shot, to_unit
from training.flipbook.renderer import Format, Renderer, plan_shot
from training.flipbook.time_box import TimeBox
from training.flipbook.whole_clip import encode_clips
from training.flipbook.workshop import Workshop
from training.flipbook.world import Actor, Scene

from tests.untrained_flipbook import export_untrained

TOY = Format(64, 64, 9)
CROPS = Cut((TOY,), frames=5, crop=32, batch=2, slots=6)
WHOLE = Cut((TOY,), frames=9, crop=None, batch=1, slots=4)
PLAN = PolishPlan(
    CROPS, WHOLE, rates=Rates(2e-2, 5e-3), warmup_steps=2, refill_steps=4, held_out_clips=1, judged_clips=2,
    is_tried_out=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder whose parts know nothing yet."""
    torch.set_num_threads(1)
    return export_untrained(tmp_path_factory.mktemp("model") / "model", TINY)


@pytest.fixture(scope="module")
def workshop(model, tmp_path_factory):
    """A workshop in which the model was polished in two calls."""
    workshop = Workshop.open(tmp_path_factory.mktemp("polish"))
    ticks = count().__next__  # a clock by steps, so that a busy machine learns as much as an idle one
    polish(workshop, model, PLAN, TimeBox(20, until=0.4, clock=ticks), workshop.folder / "out")
    polish(workshop, model, PLAN, TimeBox(30, clock=ticks), workshop.folder / "out")
    return workshop


@pytest.fixture(scope="module")
def report(workshop):
    return json.loads((workshop.folder / "out" / "polish.json").read_text())


def test_polishing_raises_the_held_out_psnr(report):
    assert report["progress"] == 1.0
    assert report["after"]["psnr_db"] > report["before"]["psnr_db"] + 0.5


def test_a_stopped_polish_goes_on_where_it_stopped(workshop, model, report):
    steps = [point["step"] for point in report["curve"]]
    assert steps == sorted(steps)
    assert 0 < steps[0] < steps[-1]
    trainer = PolishTrainer(workshop, model, PLAN)
    trainer.resume()
    saved = workshop.require(PolishTrainer.checkpoint)
    assert (trainer.step, trainer.progress) == (steps[-1], 1.0)
    assert all(torch.equal(*pair) for pair in zip(trainer.learning, saved["weights"], strict=True))
    assert all(torch.equal(*pair) for pair in zip(trainer.average_weights, saved["average"], strict=True))
    momenta = [state for player in trainer.optimizer.players for state in player.state.values()]
    assert len(momenta) == len(trainer.learning)


def test_only_the_decoder_changes(workshop, model):
    polished = workshop.folder / "polished"
    for path in model.rglob("*.*"):
        if path != model / WEIGHTS:
            assert (polished / path.relative_to(model)).read_bytes() == path.read_bytes()
    before, after = load_file(model / WEIGHTS), load_file(polished / WEIGHTS)
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert before.keys() == after.keys()
    assert {value.dtype for value in after.values()} == {torch.float16}
    assert changed
    assert {name.split(".")[0] for name in changed} == {"decoder", "post_quant_conv"}


def test_the_polished_folder_is_a_stock_pipeline(workshop):
    check_folder(workshop.folder / "polished")


def test_the_parcel_holds_the_polished_vae(workshop, tmp_path):
    parcel.unpack(workshop.folder / "out", "polish", tmp_path)
    assert (tmp_path / WEIGHTS).read_bytes() == (workshop.folder / "polished" / WEIGHTS).read_bytes()


def test_lessons_are_frames_with_their_own_latents(workshop, model):
    vae, _ = load_learner(model, workshop.device)
    reel = Reel(workshop, vae, CROPS, seed=1)
    reel.refill(8)
    assert (reel.drawn, reel.filled) == (8, 6)
    means, log_variance = encode_clips(vae, to_unit(reel.frames))
    torch.testing.assert_close(reel.means, means, atol=0.02, rtol=0)
    torch.testing.assert_close(reel.deviations, torch.exp(0.5 * log_variance), atol=0.02, rtol=0)
    before = reel.frames.clone()
    reel.refill(2)
    kept = [torch.equal(*pair) for pair in zip(before, reel.frames, strict=True)]
    assert kept == [True, True, False, False, True, True]
    lesson = reel.sample(5)
    assert lesson.latents.shape == (5, *reel.means.shape[1:])
    assert all(any(torch.equal(clip, known) for known in reel.frames) for clip in lesson.frames)


def test_a_cut_shot_shows_the_same_motion_for_a_shorter_time():
    scene = Scene((Actor("ball", "red", "large", "right"),), "plain")
    shot = plan_shot([scene], Format(64, 64, 17), Random(0))
    renderer = Renderer()
    whole, part = renderer.draw(shot), renderer.draw(cut_shot(shot, 6, 5))
    assert part.shape[2] == 5
    torch.testing.assert_close(part, whole[:, :, 6:11], atol=0.02, rtol=0)


@pytest.mark.parametrize("way", [Way(), Way(is_folded=True)])
def test_every_way_finds_the_same_loss_and_gradients(model, way):
    torch.manual_seed(0)
    lesson, decibels = None, torch.tensor(0.5)
    results = []
    for one in (Way(), way):
        vae, learning = load_learner(model, torch.device("cpu"))
        lesson = lesson or Shape(2, Format(32, 32, 9)).invent(vae)
        loss = one.prepare(vae)(vae, lesson.latents, lesson.frames, decibels)
        results.append((loss, *torch.autograd.grad(loss, learning)))
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(plain, other, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("is_folded", [False, True])
def test_the_loss_is_one_graph_for_the_compiler(model, is_folded):
    vae, _ = load_learner(model, torch.device("cpu"))
    Way(is_folded=is_folded).prepare(vae)
    lesson = Shape(1, Format(32, 32, 5)).invent(vae)
    compiled = torch.compile(find_loss, backend="eager", dynamic=False, fullgraph=True)
    arguments = vae, lesson.latents, lesson.frames, torch.tensor(1.0)
    torch.testing.assert_close(compiled(*arguments), find_loss(*arguments))


def test_the_loss_turns_into_the_psnr(model):
    vae, _ = load_learner(model, torch.device("cpu"))
    lesson = Shape(2, Format(32, 32, 5)).invent(vae)
    at_the_end = find_loss(vae, lesson.latents, lesson.frames, torch.tensor(1.0))
    clips = vae.decode(lesson.latents).sample  # untrained: far from any clamp
    error = ((clips - to_unit(lesson.frames)) / 2).square().flatten(1).mean(1)
    psnr = -10 * torch.log10(error).mean()
    torch.testing.assert_close(
        psnr, 10 * torch.log10(torch.tensor(4.0)) - at_the_end * 100 / torch.tensor(10.0).log()
    )


def test_the_ways_are_timed_and_the_quickest_is_taken(workshop, model, tmp_path):
    shapes = [Shape(1, Format(32, 32, 5)), Shape(1, TOY)]
    try_all(workshop, model, shapes, tmp_path / "found.json", [Way(), Way(is_folded=True)])
    found = read_findings(tmp_path / "found.json")
    assert set(found) == {"eager", "eager folded"}
    assert all(0 < milliseconds < 60_000 for milliseconds in found.values())
    words = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    report, findings = tmp_path / "made_up.json", json.dumps({"eager": 9.0, "compiled folded": 4.0})
    tryout = Tryout([sys.executable, "-c", words, str(report), findings], report, 60)
    tryout.child.wait()
    assert tryout.choose() == WAYS["compiled folded"]


def test_a_way_that_does_not_run_is_left_out(workshop, model, tmp_path, monkeypatch, capsys):
    def stumble(_, __, way, ___):
        if way.is_folded:
            raise RuntimeError("no such kernel")
        return 3.0

    monkeypatch.setattr("training.flipbook.kernels.time_way", stumble)
    try_all(workshop, model, [Shape(1, TOY)], tmp_path / "found.json", [Way(), Way(is_folded=True)])
    assert read_findings(tmp_path / "found.json") == {"eager": 3.0}
    assert "eager folded does not run" in capsys.readouterr().err


def test_without_findings_the_plain_way_is_taken(tmp_path):
    broken = Tryout([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "none.json", 60)
    broken.child.wait()
    assert broken.choose() == Way()
    endless = Tryout([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "none.json", 60)
    assert endless.choose() is None
    endless.box.started -= 60
    assert endless.choose() == Way()
    assert endless.child.poll() is not None


def test_training_goes_over_to_the_way_that_was_found(workshop, model, monkeypatch):
    found = Way(is_folded=True)
    monkeypatch.setattr("training.flipbook.polish.Every.is_due", lambda _: True)
    courses = Courses(PolishTrainer(workshop, model, PLAN))
    courses.tryout = Tryout([sys.executable, "-c", ""], workshop.folder / "found.json", 60)
    assert courses.now().way == Way()
    courses.tryout.child.wait()
    courses.tryout.report.write_text(json.dumps({found.name: 1.0}))
    assert courses.now().way == found
    assert courses.trainer.step == 1
    courses.trainer.progress = 1.0
    assert courses.now().way == found
    assert courses.now().reel.cut == WHOLE


def test_a_way_that_fails_in_training_gives_place_to_the_plain_one(workshop, model, monkeypatch):
    def stumble(*_):
        raise RuntimeError("out of memory")

    trainer = PolishTrainer(workshop, model, PLAN)
    monkeypatch.setattr(trainer, "train_step", stumble)
    assert Course(trainer, CROPS, Way(is_folded=True)).way == Way()


def test_a_shape_is_read_as_it_is_written():
    shape = Shape(16, Format(384, 192, 33))
    assert Shape.parse(shape.name) == shape
