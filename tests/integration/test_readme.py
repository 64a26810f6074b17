"""Every code block of the README runs."""

import os
import runpy
import shlex
import subprocess
import sys

import pytest

from filmgate.models.names import shipped_folder
from tests.blocks import COMMANDS, HUB_ID, PYTHON, ROOT, RUN, SDK, SERVER_URL, Block, read_blocks
from tests.forks import run_process
from tests.server_process import ServerProcess
from tests.service import write_cards
from tests.zoo import build_pipeline


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_pipeline("wan2.1").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server whose clips are small by default."""
    folder = tmp_path_factory.mktemp("server")
    cards = {"FILMGATE_ADMISSION__MODELS_FILE": write_cards(folder)}
    process = ServerProcess(folder, model="flipbook", **cards)
    yield process
    process.stop()


def test_fenced_and_indented_blocks_are_found():
    comment = "<!-- not run: needs a GPU and weights -->"
    text = f"a\n\n```sh\nmake x\n```\n\nb\n\n    import y\n    y.z()\n\n{comment}\n\n    c d\n"
    assert read_blocks(text) == [
        Block("sh", "make x"),
        Block("python", "import y\ny.z()"),
        Block("sh", "c d", comment),
    ]


def test_every_block_runs_here_or_the_line_above_it_says_why_it_cannot():
    unknown = [
        line for line in COMMANDS if line != "make demo" and not line.startswith(".venv/bin/filmgate ")
    ]
    assert unknown == []
    assert {block.language for block in RUN} == {"sh", "python"}
    assert [HUB_ID in text or text in SDK for text in PYTHON] == [True] * len(PYTHON)
    assert len(SDK) == 1


def test_the_readme_names_two_make_commands():
    assert [c for c in COMMANDS if c.startswith("make")] == ["make demo"]
    assert "`make test`" in (ROOT / "README.md").read_text()


def test_make_does_not_install_twice():
    """Unless the dependencies changed. A checkout gives their files any time, so make ignores it here."""
    unchanged = ["--assume-old=pyproject.toml", "--assume-old=constraints.txt"]
    command = ["make", "--dry-run", *unchanged, "demo"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert "pip install" not in planned.stdout


def test_make_demo_makes_a_clip():
    """Without the installation: `--assume-old` keeps make from running pip."""
    clip = ROOT / "out/demo.mp4"
    clip.unlink(missing_ok=True)
    subprocess.run(["make", "--assume-old=.venv/.installed", "demo"], cwd=ROOT, check=True, timeout=200)
    assert clip.read_bytes()[4:8] == b"ftyp"


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith(".venv/bin/filmgate ")])
def test_each_command_runs(command, tmp_path):
    """A clip is a small one; `make demo` renders one as users do."""
    arguments = shlex.split(command)[1:]
    if arguments[0] == "generate":
        arguments += ["--size", "64x64", "--frames", "5", "--steps", "1"]
    done = run_process("filmgate", *arguments, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("snippet", [text for text in PYTHON if text not in SDK])
def test_each_diffusers_snippet_runs(snippet, tmp_path, monkeypatch, capsys):
    """With the model in the package, on the device the snippet chooses; tests/gpu runs it on a GPU."""
    monkeypatch.chdir(tmp_path)
    small = snippet.replace("num_frames=33", "num_frames=9, height=64, width=64, num_inference_steps=2")
    exec(compile(small.replace(HUB_ID, str(shipped_folder("flipbook"))), "README.md", "exec"), {})
    assert (tmp_path / "clip.mp4").stat().st_size > 0
    assert "64, 64, 3)" in capsys.readouterr().out


@pytest.mark.parametrize("snippet", SDK)
def test_the_sdk_snippet_runs_against_a_server(snippet, server):
    """Only the port differs: the server uses a free one. Its data folder is `data`, as by default."""
    command = [sys.executable, "-c", snippet.replace(SERVER_URL, server.url)]
    done = subprocess.run(
        command, cwd=server.folder, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert (server.folder / "ball.mp4").read_bytes()[4:8] == b"ftyp"


def test_the_first_service_of_the_tutorial_runs(server):
    """Only the port differs, and the clip of the OpenAI SDK is shorter."""
    environ = os.environ | {"FILMGATE_CLIENT__URL": server.url}
    blocks = read_blocks((ROOT / "docs/tutorial/first-service.md").read_text())
    for block in (each for each in blocks if not each.reason):
        text = block.text.replace("Filmgate.local()", f"Filmgate.local(url='{server.url}')")
        text = text.replace(SERVER_URL, server.url).replace('seconds="4"', 'seconds="1", size="64x64"')
        is_python = block.language == "python"
        for arguments in [["-c", text]] if is_python else [["-m", *shlex.split(c)] for c in block.commands]:
            command = [sys.executable, *arguments]
            done = subprocess.run(
                command, cwd=server.folder, env=environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
    assert (server.folder / "sora.mp4").read_bytes()[4:8] == b"ftyp"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_each_example_runs(example, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example.name, model, "a red ball bounces"])
    runpy.run_path(str(example))
    assert capsys.readouterr().out
