"""The judge is right about rendered clips, whose content is known."""

from random import Random

import numpy as np
import pytest
from training.flipbook.judge import count_turns, judge_clip, winding
from training.flipbook.prompts import write_eval_prompts
from training.flipbook.renderer import Format, Renderer, plan_scenes
from training.flipbook.scoring import EvalResult, tally
from training.flipbook.sheet import to_pixels


@pytest.fixture(scope="module")
def results():
    renderer, rng = Renderer(), Random(11)
    results = []
    for prompt in write_eval_prompts(20):
        clip = renderer.draw(plan_scenes([prompt.scene], Format(96, 96, 33), rng))[0]
        results.append(EvalResult(prompt, judge_clip(to_pixels(clip))))
    return results


def test_the_judge_is_right_about_rendered_clips(results):
    table = tally(results)
    assert set(table) == {"setting", "colour", "motion", "shape", "both present", "relation"}
    wrong = [name for result in results for name, is_right in result.score().items() if not is_right]
    assert len(wrong) <= 1, wrong


def test_the_judge_rejects_noise(results):
    noise = np.random.default_rng(0).integers(0, 256, (9, 96, 96, 3), dtype=np.uint8)
    measured = judge_clip(noise)
    scores = [
        value
        for a in results[:8]
        for name, value in EvalResult(a.prompt, measured).score().items()
        if name in {"colour", "motion"}
    ]
    assert sum(scores) <= 2


def test_the_judge_rejects_clips_of_other_prompts(results):
    swapped = [
        EvalResult(first.prompt, second.measured)
        for first, second in zip(results, results[4:] + results[:4], strict=True)
    ]
    table = tally(swapped)
    assert table["colour"].per_cent < 40
    assert table["motion"].per_cent < 40
    assert table["shape"].per_cent < 40


def test_turns_and_winding_are_measured():
    time = np.linspace(0, 2 * np.pi, 33)
    assert count_turns(np.cos(2 * time), 0.1) == 3
    assert count_turns(time, 0.1) == 0
    assert winding(np.cos(time), np.sin(time)) == pytest.approx(2 * np.pi, rel=0.02)
