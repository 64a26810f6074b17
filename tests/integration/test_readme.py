"""What the README tells people to type works when typed."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.zoo import build_pipeline

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines() if line]
SNIPPETS = [block for kind, block in BLOCKS if kind == "python"]
HUB_ID = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_pipeline("wan2.1").save_pretrained(folder)
    return str(folder)


def test_there_are_two_make_commands():
    assert [c for c in COMMANDS if c.startswith("make")] == ["make demo"]
    assert "`make test`" in (ROOT / "README.md").read_text()


def test_make_does_no_work_twice():
    planned = subprocess.run(
        ["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install" not in planned.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith(".venv/bin/filmgate ")])
def test_each_command_runs(command, tmp_path):
    words = [sys.executable, "-m", "filmgate", *shlex.split(command)[1:]]
    asked = subprocess.run(words, cwd=tmp_path, timeout=200, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_each_snippet_runs(snippet, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = snippet.replace("num_frames=33", "num_frames=9, height=64, width=64, num_inference_steps=2")
    exec(compile(small.replace(HUB_ID, model), "README.md", "exec"), {})
    assert (tmp_path / "clip.mp4").stat().st_size > 0
    assert "(1, 64, 64, 3)" in capsys.readouterr().out


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_each_example_runs(example, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example.name, model, "a red ball bounces"])
    runpy.run_path(str(example))
    assert capsys.readouterr().out


def test_every_link_in_the_docs_leads_somewhere():
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert broken == []
