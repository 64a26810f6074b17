"""A small sample of `make eval`: the shipped weights answer held-out prompts on this machine."""

import pytest
import torch
from training.flipbook.evaluate import MODEL, Answer, generate, load_pipeline
from training.flipbook.judge import judge_clip
from training.flipbook.prompts import write_questions
from training.flipbook.renderer import Format

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="the weights are not in this tree yet")


@pytest.fixture(scope="module")
def pipeline():
    torch.set_num_threads(2)
    return load_pipeline(MODEL, "cpu")


def test_held_out_prompts_are_answered_with_the_right_colour_and_setting(pipeline):
    questions = write_questions(4)
    clips = [
        generate(pipeline, [question.prompt], Format(256, 256, 17), seed=index)[0]
        for index, question in enumerate(questions)
    ]
    scores = [
        Answer(question, judge_clip(clip)).score() for question, clip in zip(questions, clips, strict=True)
    ]
    marks = [is_right for score in scores for name, is_right in score.items() if name != "motion"]
    assert sum(marks) >= 0.75 * len(marks), scores
