"""The evaluation itself: shapes told apart, answers alike however they are spread, reports as they grow."""

import json
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image
from training.flipbook.evaluate import Exam, Paper, Report, answer_all
from training.flipbook.judge import judge_clip
from training.flipbook.marks import Answer, describe_miss, print_table, tally
from training.flipbook.networks import TINY
from training.flipbook.prompts import write_questions
from training.flipbook.renderer import Format, Renderer, plan_shot
from training.flipbook.shapes import known_outlines, name_shape
from training.flipbook.sheet import pick_frames, to_pixels
from training.flipbook.world import OBJECTS, Actor, Scene

from tests.untrained_flipbook import export_untrained


@pytest.fixture(scope="module")
def papers():
    renderer, rng = Renderer(), Random(3)
    papers = []
    for number, question in enumerate(write_questions(4)):
        clip = to_pixels(renderer.draw(plan_shot([question.scene], Format(96, 96, 9), rng))[0])
        papers.append(Paper(number, Answer(question, judge_clip(clip)), pick_frames(clip, 5)))
    return papers


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_known_by_its_outline(name):
    scene = Scene((Actor(name, "red", "medium", "sway"),), "plain")
    clip = Renderer().draw(plan_shot([scene], Format(96, 96, 9), Random(1)))[0]
    red, green, blue = clip[0], clip[1], clip[2]
    assert name_shape((red - green > 0.5) & (red - blue > 0.3)) == name


def test_outlines_are_told_apart():
    likeness = known_outlines()[:, 0] @ known_outlines().flatten(0, 1).T
    best = likeness.unflatten(1, (len(OBJECTS), -1)).amax(2)
    torch.testing.assert_close(best.diagonal(), torch.ones(len(OBJECTS)))
    assert (best - 2 * torch.eye(len(OBJECTS))).max() < 0.97


def test_the_report_grows_in_any_order(papers, tmp_path):
    report = Report(tmp_path / "out")
    report.add(papers[2:])
    report.write()
    assert json.loads((tmp_path / "out" / "report.json").read_text())["numbers"] == [2, 3]
    report.add(papers[:2])
    report.write()
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["numbers"] == [0, 1, 2, 3]
    assert written["table"]["setting"] == {"right": 4, "of": 4}
    with Image.open(tmp_path / "out" / "sheet.png") as sheet:
        assert sheet.width == 2 * (5 * 96 + 4)


def test_the_table_counts_and_names_what_is_wanted(papers, capsys):
    answers = [paper.answer for paper in papers]
    assert tally(answers)["colour"].of == sum(len(one.question.scene.actors) == 1 for one in answers)
    print_table(tally(answers))
    lines = capsys.readouterr().out.splitlines()
    setting = next(line for line in lines if line.startswith("setting"))
    assert " ".join(setting.split()) == "setting 4 4 100.0 % 95 %"
    shape = next(line for line in lines if line.startswith("shape"))
    assert shape.count("%") == 1  # reported, not wanted


def test_a_miss_is_described_by_what_was_seen(papers):
    asked, seen = papers[0].answer, papers[1].answer
    miss = describe_miss(Answer(asked.question, seen.verdict))
    assert repr(asked.question.prompt) in miss
    assert f"{seen.verdict.colour} {seen.verdict.shape}" in miss


def test_two_processes_give_the_answers_of_one(tmp_path):
    exam = Exam(export_untrained(tmp_path / "model", TINY), size=Format(64, 64, 5))
    questions = write_questions(4)
    alone = [paper for papers in answer_all(exam, questions, batch=2) for paper in papers]
    spread = [paper for papers in answer_all(exam, questions, batch=2, processes=2) for paper in papers]
    assert [paper.number for paper in alone] == [0, 1, 2, 3]
    assert sorted(paper.number for paper in spread) == [0, 1, 2, 3]
    strips = {paper.number: paper.strip for paper in spread}
    assert all(np.array_equal(paper.strip, strips[paper.number]) for paper in alone)
    assert not np.array_equal(alone[0].strip, alone[1].strip)
