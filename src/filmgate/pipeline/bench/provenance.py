"""What a result belongs to, for commands and benchmarks."""

import os
import platform
import subprocess
from pathlib import Path

from filmgate import __version__


def provenance() -> dict[str, object]:
    """The commit and the machine that a result belongs to."""
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return {
        "version": __version__,
        "commit": head.stdout.strip() or None,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
