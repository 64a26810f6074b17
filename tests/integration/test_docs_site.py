"""The documentation site builds without a warning, and its navigation has every page but the ADRs."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "index.html").read_text()
    assert "Troubleshooting" in page
    # Without them, the search box does nothing in a page that is opened from a file.
    assert 'src="javascripts/iframe-worker.js"' in page
    assert (tmp_path / "search/search_index.js").read_text().startswith("var __index = {")
    assert not re.search(r'(?:src|href)="https?://(?!squidfunk)[^"]*\.(?:js|css|woff2?)"', page)


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    # The index of the runbooks lists them, as the folder of decisions does.
    books = {page for page in pages if page.startswith("runbooks/")} - {"runbooks/index.md"}
    assert listed - books == {page for page in pages - books if not page.startswith("adr/")}
