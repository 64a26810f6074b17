"""Every command and snippet of the tutorial and of the runnable how-to pages runs, or says why it cannot."""

import shlex
from pathlib import Path

import pytest

from filmgate.database import open_database
from filmgate.settings import QueueSettings
from filmgate.store.keys.files import FileKeyring
from tests.blocks import read_blocks

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = sorted(path.name for path in (DOCS / "tutorial").glob("*.md"))
# First service runs in test_readme.py, beside the README's own snippet, on the same server.
WITH_A_SERVER = "first-service.md"
SMALL = ["--size", "64x64", "--frames", "5", "--steps", "1"]


@pytest.fixture
def run(run_command):
    """Runs a block of a page in an empty folder; a clip is as small as the model allows."""

    def run_line(line):
        words = shlex.split(line)
        if words[1] == "generate":
            words = words[: words.index("--size")] if "--size" in words else words
            words += SMALL
        code, printed, errors = run_command(*words[1:])
        assert code in (0, None), f"{line}: {errors}"
        return printed

    def run_block(block):
        if block.language == "python":
            small = block.text.replace("seconds=1", 'size="64x64", frames=5, steps=1')
            exec(compile(small, "tutorial", "exec"), {})
            return ""
        return "".join(run_line(line) for line in block.text.splitlines())

    return run_block


def runnable(page):
    return [block for block in read_blocks((DOCS / page).read_text()) if not block.reason]


@pytest.mark.parametrize("page", TUTORIAL)
def test_every_block_is_run_or_says_why_it_cannot(page):
    """S1: no command of the tutorial is only text."""
    for block in runnable(f"tutorial/{page}"):
        lines = block.text.splitlines()
        assert block.language == "python" or all(line.startswith("filmgate ") for line in lines), block


def test_first_clip(run, tmp_path):
    for block in runnable("tutorial/first-clip.md"):
        run(block)
    assert {path.name for path in tmp_path.glob("*.mp4")} == {"ball.mp4", "fish.mp4", "star.mp4"}


def test_first_team_on_postgresql_and_its_keys(run, tmp_path, monkeypatch, postgres_url):
    monkeypatch.setenv("FILMGATE_QUEUE__URL", postgres_url)
    printed = [run(block) for block in runnable("tutorial/first-team.md")]
    assert "design" in printed[0]
    assert "news" in printed[0]
    FileKeyring(tmp_path / "data" / "keys").new_data_key("design")  # as its first job does
    printed = [run(block) for block in runnable("how-to/rotate-keys.md")]
    assert "design has a new key" in printed[1]


def test_back_up(run, tmp_path):
    open_database(QueueSettings(), tmp_path / "data").close()
    (tmp_path / "data" / "keys").mkdir()
    for block in runnable("how-to/back-up.md"):
        run(block)
    assert (tmp_path / "backup-of-today" / "manifest.json").exists()
    assert (tmp_path / "vault-of-today").is_dir()


@pytest.mark.parametrize(("page", "said"), [("first-gpu.md", "RTX4090"), ("first-bill.md", "per clip")])
def test_the_planner_answers(run, page, said):
    """`doctor` runs in test_readme.py."""
    blocks = [block for block in runnable(f"tutorial/{page}") if "doctor" not in block.text]
    assert said in "".join(run(block) for block in blocks)
