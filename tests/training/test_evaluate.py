"""The evaluation: shapes are classified, processes do not change results, and the report is incremental."""

import json
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from training.flipbook.evaluate import EvaluatedClip, Evaluation, Report, evaluate_all
from training.flipbook.judge import judge_clip
from training.flipbook.networks import TINY
from training.flipbook.prompts import write_eval_prompts
from training.flipbook.renderer import Format, Renderer, plan_scenes
from training.flipbook.scenes import OBJECTS, Actor, Scene
from training.flipbook.scoring import EvalResult, describe_miss, print_table, tally
from training.flipbook.shapes import classify_shape, reference_outlines
from training.flipbook.sheet import pick_frames, to_pixels

from tests.untrained_flipbook import export_untrained


@pytest.fixture(scope="module")
def clips():
    renderer, rng = Renderer(), Random(3)
    clips = []
    for number, prompt in enumerate(write_eval_prompts(4)):
        clip = to_pixels(renderer.draw(plan_scenes([prompt.scene], Format(96, 96, 9), rng))[0])
        clips.append(EvaluatedClip(number, EvalResult(prompt, judge_clip(clip)), pick_frames(clip, 5)))
    return clips


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_classified_by_its_outline(name):
    scene = Scene((Actor(name, "red", "medium", "sway"),), "plain")
    clip = Renderer().draw(plan_scenes([scene], Format(96, 96, 9), Random(1)))[0]
    red, green, blue = clip[0], clip[1], clip[2]
    assert classify_shape((red - green > 0.5) & (red - blue > 0.3)) == name


def test_outlines_differ():
    correlation = reference_outlines()[:, 0] @ reference_outlines().flatten(0, 1).T
    best = correlation.unflatten(1, (len(OBJECTS), -1)).amax(2)
    torch.testing.assert_close(best.diagonal(), torch.ones(len(OBJECTS)))
    assert (best - 2 * torch.eye(len(OBJECTS))).max() < 0.97


def test_clips_can_be_added_to_the_report_in_any_order(clips, tmp_path):
    report = Report(tmp_path / "out")
    report.add(clips[2:])
    report.write()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["numbers"] == [2, 3]
    report.add(clips[:2])
    report.write()
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["numbers"] == [0, 1, 2, 3]
    assert written["table"]["setting"] == {"right": 4, "of": 4}
    with Image.open(tmp_path / "out" / "sheet.png") as sheet:
        assert sheet.width == 2 * (5 * 96 + 4)


def test_the_table_shows_counts_and_targets(clips, capsys):
    results = [clip.result for clip in clips]
    assert tally(results)["colour"].of == sum(len(one.prompt.scene.actors) == 1 for one in results)
    print_table(tally(results))
    lines = capsys.readouterr().out.splitlines()
    setting = next(line for line in lines if line.startswith("setting"))
    assert " ".join(setting.split()) == "setting 4 4 100.0 % 95 %"
    shape = next(line for line in lines if line.startswith("shape"))
    assert shape.count("%") == 1  # reported, without a target


def test_a_miss_is_described_by_the_measurement(clips):
    one, other = clips[0].result, clips[1].result
    miss = describe_miss(EvalResult(one.prompt, other.measured))
    assert repr(one.prompt.text) in miss
    assert f"{other.measured.colour} {other.measured.shape}" in miss


def test_two_processes_give_the_results_of_one(tmp_path):
    evaluation = Evaluation(export_untrained(tmp_path / "model", TINY), size=Format(64, 64, 5))
    prompts = write_eval_prompts(4)
    alone = [clip for clips in evaluate_all(evaluation, prompts, batch=2) for clip in clips]
    spread = [clip for clips in evaluate_all(evaluation, prompts, batch=2, processes=2) for clip in clips]
    assert [clip.number for clip in alone] == [0, 1, 2, 3]
    assert sorted(clip.number for clip in spread) == [0, 1, 2, 3]
    strips = {clip.number: clip.strip for clip in spread}
    assert all(np.array_equal(clip.strip, strips[clip.number]) for clip in alone)
    assert not np.array_equal(alone[0].strip, alone[1].strip)
