"""The judge is right about clips whose truth is known; only then may it judge a model."""

from random import Random

import numpy as np
import pytest
from training.flipbook.judge import count_turns, judge_clip, winding
from training.flipbook.marks import Answer, tally
from training.flipbook.prompts import write_questions
from training.flipbook.renderer import Format, Renderer, plan_shot
from training.flipbook.sheet import to_pixels


@pytest.fixture(scope="module")
def answers():
    renderer, rng = Renderer(), Random(11)
    answers = []
    for question in write_questions(20):
        clip = renderer.draw(plan_shot([question.scene], Format(96, 96, 33), rng))[0]
        answers.append(Answer(question, judge_clip(to_pixels(clip))))
    return answers


def test_the_judge_is_right_about_the_renderers_own_clips(answers):
    table = tally(answers)
    assert set(table) == {"setting", "colour", "motion", "shape", "both present", "relation"}
    wrong = [name for answer in answers for name, is_right in answer.score().items() if not is_right]
    assert len(wrong) <= 1, wrong


def test_the_judge_finds_nothing_right_in_noise(answers):
    noise = np.random.default_rng(0).integers(0, 256, (9, 96, 96, 3), dtype=np.uint8)
    verdict = judge_clip(noise)
    scores = [
        value
        for a in answers[:8]
        for name, value in Answer(a.question, verdict).score().items()
        if name in {"colour", "motion"}
    ]
    assert sum(scores) <= 2


def test_the_judge_tells_answers_apart(answers):
    swapped = [
        Answer(first.question, second.verdict)
        for first, second in zip(answers, answers[4:] + answers[:4], strict=True)
    ]
    table = tally(swapped)
    assert table["colour"].per_cent < 40
    assert table["motion"].per_cent < 40
    assert table["shape"].per_cent < 40


def test_turns_and_winding_are_counted():
    time = np.linspace(0, 2 * np.pi, 33)
    assert count_turns(np.cos(2 * time), 0.1) == 3
    assert count_turns(time, 0.1) == 0
    assert winding(np.cos(time), np.sin(time)) == pytest.approx(2 * np.pi, rel=0.02)
