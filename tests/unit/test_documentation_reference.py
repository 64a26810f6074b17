"""The pages in docs/reference are up to date with the code, and every error has a remedy."""

import re
from pathlib import Path

import pytest
from docs.reference.remedies import REMEDIES
from docs.reference.write_pages import PAGES, _subclasses

from filmgate.errors import FilmgateError

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_up_to_date(name):
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make docs`"


def test_a_group_that_runs_without_a_subcommand_has_a_section_with_its_options():
    section = PAGES["cli.md"]().partition("## filmgate slo\n")[2].partition("\n## ")[0]
    assert "`--by-tenant`" in section


def test_every_error_has_a_remedy_and_no_remedy_is_left_over():
    codes = {kind.code for kind in _subclasses(FilmgateError)} | {FilmgateError.code}
    assert set(REMEDIES) == codes


@pytest.mark.parametrize("name", PAGES)
def test_every_link_within_a_reference_page_has_its_heading(name):
    text = (FOLDER / name).read_text()
    headings = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= headings
