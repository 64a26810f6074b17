"""The files of the console: small, complete, and with headers that allow no other server."""

import gzip
import hashlib
import re
from pathlib import Path

from filmgate.api.console import HEADERS, STATIC, read_files

MAX_COMPRESSED_BYTES = 120_000
SOURCES = Path(__file__).parents[3] / "console"


def test_the_console_is_small():
    files = read_files()
    assert {"index.html", "console.js", "console.css", "icon.svg"} <= set(files)
    assert sum(len(file.compressed) for file in files.values()) < MAX_COMPRESSED_BYTES


def test_a_file_is_compressed_without_loss():
    assert all(gzip.decompress(file.compressed) == file.data for file in read_files().values())


def test_the_page_has_no_inline_code_and_names_no_other_server():
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=|\bstyle=", page) == []
    links = re.findall(r"""(?:src|href)="([^"]+)""", page)
    assert links
    assert all(link.startswith("/console/") for link in links)


def test_the_code_examples_set_no_variable_of_ours():
    """A FILMGATE_ variable that is not a setting stops every `filmgate` command in the same shell."""
    assert re.findall(r"FILMGATE_\w+", (STATIC / "console.js").read_text()) == []


def test_the_policy_allows_only_this_server_and_no_inline_code():
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy


def test_the_built_files_belong_to_the_sources():
    """Run `make console` after a change in console/."""
    names = ["index.html", "package-lock.json", "package.json", "vite.config.js"]
    names += [
        f"{folder}/{path.name}" for folder in ("public", "src") for path in (SOURCES / folder).iterdir()
    ]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\n".encode() + (SOURCES / name).read_bytes())
    assert (STATIC / "sources.sha256").read_text().strip() == digest.hexdigest()
