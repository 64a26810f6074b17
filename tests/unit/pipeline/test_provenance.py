"""The commit in the results of benchmarks."""

import shutil
import subprocess

import pytest

from filmgate.pipeline.bench import provenance as module
from filmgate.pipeline.bench.provenance import provenance


def test_without_git_a_result_has_no_commit(monkeypatch):
    """The image of a worker has no git."""
    monkeypatch.setenv("PATH", "/does/not/exist")
    assert provenance()["commit"] is None


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_repository_around_an_installed_package_is_not_its_commit(tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *command], check=True, cwd=tmp_path)
    installed = tmp_path / "venv" / "lib"
    installed.mkdir(parents=True)
    monkeypatch.setattr(module, "CHECKOUT", installed)
    assert provenance()["commit"] is None
    monkeypatch.setattr(module, "CHECKOUT", tmp_path)
    assert provenance()["commit"]
