"""constraints.txt: the one version of each package that the tests and the images have."""

import re
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def normalise(name):
    """The name of a package as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_constraints():
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    return {normalise(name): version for name, version in (line.split("==") for line in lines)}
