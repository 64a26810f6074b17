"""The quality benchmark behind the figures of docs/denoiser.md."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.bench_quality import parse_plan, psnr
from benchmarks.easy_cache import EasyCache, easy_cache
from filmgate.models.quality import LEVELS, QualityLevel, full_steps

DOCS = Path(__file__).parents[2] / "docs/denoiser.md"


def clip(value):
    return np.full((2, 4, 4, 3), value, dtype=np.uint8)


def test_the_psnr_of_equal_clips_is_infinite():
    assert psnr(clip(7), clip(7)) == math.inf


def test_a_difference_of_one_level_in_every_pixel_is_48_decibels():
    assert psnr(clip(7), clip(8)) == pytest.approx(48.13, abs=0.01)
    assert psnr(clip(0), clip(255)) == 0


def test_a_plan_that_is_tried_is_a_level():
    assert parse_plan("0.2,0.1,3,2") == QualityLevel("0.2,0.1,3,2", "", 0.2, 0.1, 3, 2)


def test_the_docs_name_every_level_and_its_passes_at_thirty_steps():
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) % \|", DOCS.read_text(), re.MULTILINE))
    shares = {level.name: full_steps(level.name, 30, has_guidance=False) / 30 for level in LEVELS}
    assert rows == {name: f"{share:.0%}".rstrip("%") for name, share in shares.items()}


class Drift(torch.nn.Module):
    """A denoiser whose answer changes in proportion to its input; counts its passes."""

    passes = 0

    def forward(self, hidden_states):
        self.passes += 1
        return (hidden_states * 0.5 + 10,)


def denoise_easily(threshold, steps=20, passes_per_step=1):
    network = Drift()
    given = [step / 10 + branch for step in range(steps) for branch in range(passes_per_step)]
    with easy_cache(network, EasyCache(threshold, steps, passes_per_step)):
        answers = [network(hidden_states=torch.full((4,), value))[0] for value in given]
    assert "forward" not in vars(network)
    return network.passes, answers


def test_easy_cache_computes_all_passes_at_threshold_zero_and_fewer_above():
    counts = [denoise_easily(threshold)[0] for threshold in (0.0, 0.011, 0.03)]
    assert counts[0] == 20 > counts[1] > counts[2] > 5  # a fifth of the steps and the last are computed


def test_easy_cache_adds_the_last_difference_to_the_input():
    """After four computed steps, the next answer is the input plus the difference at the fourth."""
    _, answers = denoise_easily(0.03)
    assert float(answers[4][0]) == pytest.approx(0.4 + (0.3 * 0.5 + 10 - 0.3))


def test_easy_cache_decides_once_for_both_passes_of_a_guided_step():
    single, double = (denoise_easily(0.03, passes_per_step=count)[0] for count in (1, 2))
    assert double == 2 * single
