"""Host memory does not grow with the length of a clip."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT_FRAMES, LONG_FRAMES = 24, 128
MAX_GROWTH_BYTES = 48 << 20


@pytest.mark.parametrize("case", ["uploaded early", "uploaded afterwards", "encoded"])
def test_a_long_clip_takes_no_more_memory_than_a_short_one(case, tmp_path):
    child = subprocess.run(
        [sys.executable, "-m", "tests.memory_child", tmp_path, case, str(SHORT_FRAMES), str(LONG_FRAMES)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    (_, short_peak), (clip_bytes, long_peak) = (json.loads(line) for line in child.stdout.splitlines())
    assert clip_bytes > 120 << 20
    assert long_peak - short_peak < MAX_GROWTH_BYTES
