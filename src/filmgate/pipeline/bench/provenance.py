"""What a result belongs to, for commands and benchmarks."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from filmgate import __version__

CHECKOUT = Path(__file__).parents[4]


def provenance() -> dict[str, object]:
    """The commit and the machine that a result belongs to."""
    return {
        "version": __version__,
        "commit": _read_commit(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }


def _read_commit() -> str | None:
    """None for an installed package, which may be inside the repository of another project."""
    git = shutil.which("git")
    if git is None or not (CHECKOUT / ".git").exists():
        return None
    command = [git, "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHECKOUT)
    return done.stdout.strip() or None
