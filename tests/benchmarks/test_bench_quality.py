"""The quality benchmark behind the figures of docs/denoiser.md."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bench_quality import LEVELS, psnr
from filmgate.pipeline.loading.quality import THRESHOLDS

DOCS = Path(__file__).parents[2] / "docs/denoiser.md"


def clip(value):
    return np.full((2, 4, 4, 3), value, dtype=np.uint8)


def test_the_psnr_of_equal_clips_is_infinite():
    assert psnr(clip(7), clip(7)) == math.inf


def test_a_difference_of_one_level_in_every_pixel_is_48_decibels():
    assert psnr(clip(7), clip(8)) == pytest.approx(48.13, abs=0.01)
    assert psnr(clip(0), clip(255)) == 0


def test_the_docs_name_every_level_and_its_threshold():
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d.-]+) \| \d+ % \|", DOCS.read_text(), re.MULTILINE))
    assert rows == {level: f"{THRESHOLDS[level]:g}" if level in THRESHOLDS else "-" for level in LEVELS}
