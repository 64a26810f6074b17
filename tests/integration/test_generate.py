"""`filmgate generate` as people use it, and everything that can be wrong with what they type."""

import json
import os
import subprocess
import sys

import av
import pytest
from PIL import Image

from filmgate.cli import main

QUICK = ("--size", "64x64", "--frames", "5", "--steps", "2")


def generate(*arguments, cwd, **environ):
    return subprocess.run(
        [sys.executable, "-m", "filmgate", "generate", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environ},
        timeout=120,
        check=False,
    )


@pytest.fixture
def ask(monkeypatch, capsys, tmp_path):
    """The command in this process, so that torch is imported once: exit code and stderr."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["filmgate", "generate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    stills = ("--thumbnail", "t.jpg", "--spritesheet", "s.jpg")
    return folder, generate(
        "a red ball", *QUICK, "--seed", "7", "-o", "clip.mp4", "--json", *stills, cwd=folder
    )


def test_one_json_object_on_stdout_and_everything_else_on_stderr(made):
    _, asked = made
    report = json.loads(asked.stdout)
    assert asked.returncode == 0
    assert (report["width"], report["height"], report["frames"], report["seed"]) == (64, 64, 5, 7)
    assert set(report["stage_seconds"]) == {"text", "denoise", "decode"}
    assert "denoising" in asked.stderr


def test_the_clip_plays_and_knows_where_it_comes_from(made):
    folder, _ = made
    with av.open(str(folder / "clip.mp4")) as clip:
        assert clip.metadata["filmgate_model"] == "flipbook"
        assert clip.metadata["filmgate_seed"] == "7"
        assert len(list(clip.decode(video=0))) == 5


def test_nothing_is_left_beside_the_clip_and_its_stills(made):
    folder, _ = made
    assert sorted(path.name for path in folder.iterdir()) == ["clip.mp4", "s.jpg", "t.jpg"]
    with Image.open(folder / "t.jpg") as thumbnail:
        assert thumbnail.size == (64, 64)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--size", "65x64"), 2, "--size"),
        (("--size", "100x100"), 2, "the nearest size is 96x96"),
        (("--size", "huge"), 2, "WIDTHxHEIGHT"),
        (("--frames", "6"), 2, "the nearest to 6 is 5"),
        (("--frames", "0"), 2, "--frames"),
        (("--seconds", "0"), 2, "--seconds"),
        (("--seconds", "99999"), 2, "--seconds"),
        (("--steps", "0"), 2, "--steps"),
        (("--model", "no-such-model"), 2, "--model"),
        (("--model", "./empty"), 2, "model_index.json"),
        (("--model", "./broken"), 1, "cannot be loaded"),
        (("--image", "missing.png"), 2, "--image"),
        (("-o", "."), 2, "--output"),
    ],
)
def test_bad_input_is_one_line_that_names_the_option(tmp_path, ask, arguments, code, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/model_index.json").write_text(
        '{"_class_name": "WanPipeline", "vae": ["diffusers", "Gone"]}'
    )
    options = dict(zip(QUICK[::2], QUICK[1::2], strict=True))
    options.update({arguments[0]: arguments[1]})
    if "--seconds" in options:
        del options["--frames"]
    flat = [word for pair in options.items() for word in pair]
    ended, printed = ask("a cat", *flat)
    assert ended == code, printed
    (line,) = [line for line in printed.splitlines() if line.startswith("error:")]
    assert words in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "empty"]


@pytest.mark.parametrize("prompt", ["", "  "])
def test_an_empty_prompt_is_refused_before_anything_is_loaded(ask, prompt):
    code, said = ask(prompt, "--model", "nowhere")
    assert code == 2
    assert "PROMPT: the prompt is empty" in said


def test_an_unwritable_folder_is_refused_before_anything_is_rendered(ask):
    ended, printed = ask("a cat", *QUICK, "-o", "/proc/filmgate/clip.mp4")
    assert ended == 2
    assert "--output" in printed
    assert "denoising" not in printed


def test_a_gpu_that_was_asked_for_must_be_there(tmp_path, ask, monkeypatch):
    monkeypatch.setenv("FILMGATE_PIPELINE__DEVICE", "cuda:7")
    ended, printed = ask("a cat", *QUICK)
    assert ended == 1
    assert "filmgate doctor" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
        "sys.argv = ['filmgate', 'generate', 'a cat', *sys.argv[1:]]; from filmgate.cli import main; main()"
    )
    asked = subprocess.run(
        [sys.executable, "-c", limited, *QUICK],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert asked.returncode == 1
    assert "error: " in asked.stderr
    assert "Traceback" not in asked.stderr
    assert list(tmp_path.iterdir()) == []
