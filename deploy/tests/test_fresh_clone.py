"""The first day in a fresh clone and clean environments: install, first clip, own model, no dead end.

`make release-check` runs it: it installs Filmgate twice. tests/integration/test_three_users.py plays the same
three users in every test run, in the environment of the tests.
"""

import os
import re
import subprocess
import sys
import time

import httpx
import pytest

from deploy.tests.images import ROOT
from filmgate.client import Filmgate, RequestFailed
from tests.server_process import ServerProcess

pytestmark = pytest.mark.skipif(
    not os.environ.get("FILMGATE_TEST_RELEASE"), reason="make release-check installs fresh clones"
)
QUIET = {
    name: value for name, value in os.environ.items() if not name.startswith(("FILMGATE_", "PYTHONPATH"))
}


class Clone:
    """A clone of the last commit, and an environment with some of its extras."""

    def __init__(self, folder, extras):
        self.folder = folder
        subprocess.run(["git", "clone", "--quiet", ROOT, folder / "filmgate"], check=True)
        subprocess.run([sys.executable, "-m", "venv", folder / ".venv"], check=True)
        pip = [self.program("python"), "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
        began = time.monotonic()
        subprocess.run([*pip, f".{extras}"], cwd=folder / "filmgate", check=True)
        self.install_seconds = time.monotonic() - began
        (folder / "elsewhere").mkdir()

    def program(self, name):
        return str(self.folder / ".venv/bin" / name)

    def run(self, *arguments):
        """`filmgate` in a folder that is not the clone."""
        command = [self.program("filmgate"), *arguments]
        return subprocess.run(
            command, cwd=self.folder / "elsewhere", env=QUIET, capture_output=True, text=True, check=False
        )

    def serve(self, folder, *options):
        command = [self.program("filmgate"), "serve", "--port", "0"]
        unset = {"FILMGATE_ADMISSION__SCALE_FROM_ZERO": "", "FILMGATE_ADMISSION__MODELS_FILE": ""}
        return ServerProcess(folder, *options, model="flipbook", command=command, **unset)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return Clone(tmp_path_factory.mktemp("bare"), "")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Clone(tmp_path_factory.mktemp("whole"), "[worker]")


def test_without_the_worker_extra_everything_says_what_is_missing(bare, tmp_path):
    assert bare.run("plan", "fit", "--gpu", "rtx4090", "--seconds", "5").returncode == 0
    clip = bare.run("generate", "a red ball")
    assert (clip.returncode, clip.stderr.count("\n")) == (1, 1)
    assert re.search(r"is not installed; .*pip install .*\[worker\]", clip.stderr)
    assert "pip install filmgate" not in clip.stderr
    server = bare.serve(tmp_path)
    try:
        server.wait_for_log(r"error: the worker cannot start: \w+ is not installed; .*\[worker\]")
        with Filmgate(server.url, server.key) as client, pytest.raises(RequestFailed) as caught:
            client.create("a red ball", model="flipbook")
        assert caught.value.status == httpx.codes.SERVICE_UNAVAILABLE
    finally:
        server.stop()


def test_from_the_clone_to_the_first_clip(whole, record_property):
    began = time.monotonic()
    done = whole.run("generate", "a red ball bounces on the grass", "-o", "ball.mp4")
    record_property("install_seconds", whole.install_seconds)
    record_property("clip_seconds", time.monotonic() - began)
    assert done.returncode == 0, done.stderr
    assert (whole.folder / "elsewhere/ball.mp4").read_bytes()[4:8] == b"ftyp"


def test_a_model_of_ones_own_is_served_and_is_the_default(whole, tmp_path):
    (found,) = (whole.folder / ".venv").glob("lib/python*/site-packages/filmgate/models/shipped/miniature")
    server = whole.serve(tmp_path, "--model", f"mine={found}")
    data = ("--data", str(tmp_path / "data"))
    try:
        server.wait_for_log('"message": "ready"', 300)
        with Filmgate(server.url, server.key) as client:
            small = {"size": "64x64", "seconds": 0.25, "steps": 1}
            assert client.generate("a red ball", tmp_path / "clip.mp4", **small).model == "mine"
        for path in ("/", "/docs"):
            page = httpx.get(server.url + path)
            assert page.status_code == httpx.codes.OK
            assert not re.search(r'(?:src|href)="https?://', page.text), "pages work without the internet"
        assert whole.run("tenant", "add", "bank", *data).returncode == 0
        assert whole.run("tenant", "set", "bank", "--max-queued", "2", *data).returncode == 0
        assert "there is no data folder" in whole.run("tenant", "list").stderr
        assert "there is no data folder" in whole.run("worker").stderr
        assert "a hub id such as" in whole.run("models", "pull", "not/a/model").stderr
    finally:
        server.stop()
