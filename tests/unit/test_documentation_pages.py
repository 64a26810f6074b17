"""Links of the pages, their line lengths, and the form of how-to pages, runbooks and decisions."""

import re
from pathlib import Path

import pytest

from tests.unit.test_documentation_commands import FOR_CONTRIBUTORS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("t*/*/README.md")})
HOW_TO = [page for page in sorted((DOCS / "how-to").glob("*.md")) if FOR_CONTRIBUTORS.match(page.name)]
LINE = 120


def show(page):
    return str(page.relative_to(ROOT))


def slugs_of(page):
    """The anchors of a page: its headings in lower case, without punctuation, with - for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if link.startswith(("http://", "https://")):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in slugs_of(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_every_link_has_a_target_and_every_anchor_a_heading(page):
    assert list(broken_links(page)) == []


def test_a_wrong_anchor_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A tenant's `GPU`\n\n[a](#a-tenants-gpu) [b](#b) [c](c.md) [d](page.md#d)")
    assert list(broken_links(page)) == ["#b", "c.md", "page.md#d"]


@pytest.mark.parametrize("page", HOW_TO, ids=show)
def test_a_contributor_needs_ten_lines_to_add_something(page):
    title, *lines = (line for line in page.read_text().splitlines() if line)
    assert title.startswith("# Add a ")
    assert 0 < len(lines) <= 10
    assert [line for line in lines if len(line) > LINE] == []


@pytest.mark.parametrize("page", HOW_TO, ids=show)
def test_every_file_that_a_how_to_page_names_exists(page):
    named = re.findall(r"`((?:src|tests|docs)/[\w./-]+)`", page.read_text())
    patterns = ("NAME", "LANGUAGE", "docs/reference")  # to be written, or generated
    assert [
        path for path in named if not any(p in path for p in patterns) and not (ROOT / path).exists()
    ] == []
    assert named


FOLDERS = ("src", "tests", "benchmarks", "deploy", "docs", "training")
SOURCES = [f"/{show(file)}" for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
ELSEWHERE = ("vllm/engine/arg_utils.py", "/NAME")  # of another project, or to be written


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_every_module_that_a_page_names_with_its_folder_exists(page):
    named = re.findall(r"(?<![\w./-])[\w-]+(?:/[\w-]+)+\.py\b", page.read_text())
    wanted = [path for path in named if not any(each in path for each in ELSEWHERE)]
    assert [path for path in wanted if not any(file.endswith(f"/{path}") for file in SOURCES)] == []


def test_there_is_a_how_to_page_for_everything_that_contributors_add():
    linked = re.findall(r"\(docs/how-to/(add-a-[\w-]+\.md)\)", (ROOT / "CONTRIBUTING.md").read_text())
    assert sorted(linked) == [page.name for page in HOW_TO]


@pytest.mark.parametrize("page", sorted((DOCS / "adr").glob("*.md")), ids=show)
def test_a_decision_has_its_number_its_context_the_decision_and_its_consequences(page):
    text = page.read_text()
    assert re.match(rf"# {int(page.name[:4])}\. \S", text)
    context, *between, last = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert context == "Context"
    assert {"Decision", "First decision"} & {*between}
    assert "Consequences" in {*between, last}


GENERATED = ("settings.md", "metrics.md", "planner-validation.md", "reference/cli.md", "reference/errors.md")
GENERATED += ("reference/http.md", "reference/python.md")


def prose_of(page):
    """The lines of a page without code, tables, images and headings, which cannot be wrapped."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line for line in text.splitlines() if not re.match(r"    |\||!\[|#|<!--", line)]


@pytest.mark.parametrize("page", [page for page in PAGES if not show(page).endswith(GENERATED)], ids=show)
def test_prose_is_wrapped(page):
    assert [line for line in prose_of(page) if len(line) > LINE] == []
