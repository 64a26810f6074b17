"""The quality benchmark behind the figures of docs/denoiser.md."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bench_quality import parse_plan, psnr
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
