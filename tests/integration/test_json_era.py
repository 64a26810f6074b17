"""The conformance suite with an old SDK that sends JSON (2.1 to 2.26)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = "2.20.0"
FOLDER = ROOT / "build" / f"openai-{VERSION}"


def test_the_conformance_suite_passes_with_an_old_sdk():
    if not (FOLDER / "openai").is_dir():
        message = f"openai {VERSION} is not installed; `make {FOLDER.relative_to(ROOT)}` installs it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    environ = os.environ | {"PYTHONPATH": str(FOLDER), "FILMGATE_TEST_OPENAI": VERSION}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conformance"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
