"""The command line as an operator types it, against one data folder."""

import os
import subprocess
import sys


def run_filmgate(folder, *arguments):
    """`filmgate ARGUMENTS` in a process of its own: exit code, stdout and stderr."""
    return subprocess.run(
        [sys.executable, "-m", "filmgate", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "FILMGATE_DATA": str(folder)},
        timeout=120,
        check=False,
    )
