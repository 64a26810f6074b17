"""A small sample of `make eval`: the shipped model on held-out prompts."""

import numpy as np
import pytest
import torch
from training.flipbook.evaluate import MODEL, STEPS, generate, load_pipeline
from training.flipbook.judge import judge_clip
from training.flipbook.prompts import write_eval_prompts
from training.flipbook.renderer import Format
from training.flipbook.scoring import EvalResult


@pytest.fixture(scope="module")
def pipeline():
    return load_pipeline(MODEL, "cpu")


def test_clips_of_held_out_prompts_have_the_right_colours_and_settings(pipeline):
    prompts = write_eval_prompts(4)
    scores = []
    for seed, prompt in enumerate(prompts):
        (clip,) = generate(pipeline, [prompt.text], Format(192, 192, 9), seed=seed)
        scores.append(EvalResult(prompt, judge_clip(clip)).score())
    right = [is_right for score in scores for name, is_right in score.items() if name != "motion"]
    assert sum(right) >= 0.75 * len(right), scores


def test_judged_clips_equal_those_of_stock_diffusers(pipeline):
    (judged,) = generate(pipeline, ["a red ball"], Format(64, 64, 9), seed=3)
    stock = pipeline(
        "a red ball",
        width=64,
        height=64,
        num_frames=9,
        num_inference_steps=STEPS,
        guidance_scale=1.0,
        generator=torch.Generator().manual_seed(3),
    ).frames[0]
    assert np.abs(judged - 255 * stock).max() < 1
