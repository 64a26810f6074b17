"""docs/how-to/add-a-provider.md names every file that depends on the kind of provider."""

import re
from pathlib import Path

import pytest

from filmgate.settings import ProviderSettings

ROOT = Path(__file__).parents[3]
KINDS = ("http", "bedrock")


@pytest.fixture(scope="module")
def named_files():
    page = (ROOT / "docs/how-to/add-a-provider.md").read_text()
    return set(re.findall(r"`([\w./]+/[\w.]+\.(?:py|md))`", page))


def test_it_names_the_file_of_the_provider(named_files):
    assert "src/filmgate/providers/NAME.py" in named_files


def test_no_other_source_file_depends_on_the_kind_of_provider(named_files):
    own = {f"src/filmgate/providers/{kind}.py" for kind in KINDS}
    pattern = re.compile(rf'(kind\b.*|case )"({"|".join(KINDS)})"')
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if "provider" in (text := path.read_text()) and pattern.search(text)
    }
    assert found - own <= named_files
    assert "src/filmgate/providers/__init__.py" in found


def test_the_kinds_of_providers_are_those_of_the_settings():
    assert ProviderSettings.model_fields["kind"].annotation.__args__ == ("disabled", *KINDS)
