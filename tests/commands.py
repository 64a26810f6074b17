"""The `filmgate` command line with a given data folder."""

import os
import subprocess
import sys


def run_filmgate(folder, *arguments):
    """Run `filmgate ARGUMENTS` as a process; returns exit code, stdout and stderr."""
    return subprocess.run(
        [sys.executable, "-m", "filmgate", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "FILMGATE_DATA": str(folder)},
        timeout=120,
        check=False,
    )
