"""Messages that new users did not understand are gone, and no page says that the package is on an index."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = [
    path
    for folder in ("src", "docs", "console/src", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".js", ".jsx", ".toml"}
] + [ROOT / "README.md"]
CONFUSING_MESSAGES = (
    "the tenant's key is gone, and the request with it",
    "is not between 0 and 600 seconds",
    "this model makes 4k+1 frames",
    "there is no such model; the nearest is",
    "Need no key; on loopback alone",
    "s are promised",
    "settings: unknown setting",
    "encoded no frame",
)


@pytest.mark.parametrize("sentence", CONFUSING_MESSAGES)
def test_confusing_messages_do_not_come_back(sentence):
    """Messages say what is wrong and the remedy, in plain English."""
    found = [str(path.relative_to(ROOT)) for path in TEXTS if sentence in path.read_text()]
    assert found == []


def test_nothing_says_that_the_package_is_on_an_index():
    """The name is not published: messages and pages name a way that works."""
    pattern = re.compile(r"pip install (?:-\S+ )*[\"']?filmgate(?![-/\w.]*\.whl)")
    found = [str(path.relative_to(ROOT)) for path in TEXTS if pattern.search(path.read_text())]
    assert found == []
