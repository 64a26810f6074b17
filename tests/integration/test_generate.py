"""`filmgate generate`: its output, and its errors for wrong arguments."""

import gc
import io
import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import ANY

import av
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import filmgate
from filmgate.cli import main
from filmgate.models.names import shipped_folder
from tests.commands import run_filmgate
from tests.full_disk import full_disk

TINY = ("--size", "64x64", "--frames", "5", "--steps", "1")
QUICK = ("--size", "64x64", "--frames", "5", "--steps", "2")


@pytest.fixture
def run(run_command):
    """Runs `filmgate generate`; returns the exit code and stderr."""

    def generate(*arguments):
        code, _, errors = run_command("generate", *arguments)
        return code, errors

    return generate


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated")
    stills = ("--thumbnail", folder / "t.jpg", "--spritesheet", folder / "s.jpg")
    options = ("--seed", "7", "-o", folder / "clip.mp4", "--json", *stills)
    return folder, run_filmgate(folder / "data", "generate", "a red ball", *QUICK, *map(str, options))


def test_stdout_has_one_json_object_and_progress_goes_to_stderr(generated):
    _, ended = generated
    report = json.loads(ended.stdout)
    assert ended.returncode == 0
    assert (report["width"], report["height"], report["frames"], report["seed"]) == (64, 64, 5, 7)
    assert set(report["stage_seconds"]) == {"text", "denoise", "decode"}
    assert "denoising" in ended.stderr


def test_the_clip_plays_and_has_model_and_seed_in_its_metadata(generated):
    folder, _ = generated
    with av.open(str(folder / "clip.mp4")) as clip:
        assert clip.metadata["filmgate_model"] == "flipbook"
        assert clip.metadata["filmgate_seed"] == "7"
        assert len(list(clip.decode(video=0))) == 5


def test_no_other_file_is_left_beside_the_clip_and_its_stills(generated):
    folder, _ = generated
    assert sorted(path.name for path in folder.iterdir()) == ["clip.mp4", "s.jpg", "t.jpg"]
    with Image.open(folder / "t.jpg") as thumbnail:
        assert thumbnail.size == (64, 64)


def test_a_lora_file_changes_the_clip_by_its_scale(tmp_path, run):
    layer = "transformer.blocks.0.attn1.to_q"
    size = load_file(next((shipped_folder("miniature") / "transformer").glob("*.safetensors")))[
        layer.removeprefix("transformer.") + ".weight"
    ].shape
    down, up = torch.ones(2, size[1]), torch.ones(size[0], 2)
    weights = {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}
    save_file(weights, tmp_path / "style 1.safetensors")
    clips = {}
    for lora in ("", "style 1.safetensors:0", "style 1.safetensors"):
        options = ("--model", "miniature", *TINY, "--seed", "1", "-o", "clip.mp4")
        assert run("a red ball", *options, *(("--lora", lora) if lora else ())) == (0, ANY)
        clips[lora] = (tmp_path / "clip.mp4").read_bytes()
    plain, scaled, whole = clips.values()
    assert plain == scaled
    assert plain != whole


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
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
        (("--lora", "missing.safetensors:0.5"), 2, "--lora: there is no file 'missing.safetensors'"),
        (("-o", "."), 2, "--output"),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_the_option(tmp_path, run, arguments, code, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/model_index.json").write_text(
        '{"_class_name": "WanPipeline", "vae": ["diffusers", "Gone"]}'
    )
    options = dict(zip(QUICK[::2], QUICK[1::2], strict=True))
    options.update({arguments[0]: arguments[1]})
    if "--seconds" in options:
        del options["--frames"]
    flags = [word for pair in options.items() for word in pair]
    ended, printed = run("a cat", *flags)
    assert ended == code, printed
    (line,) = [line for line in printed.splitlines() if line.startswith("error:")]
    assert message in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "empty"]


def test_a_batch_loads_the_model_once_and_numbers_its_clips(tmp_path, run):
    (tmp_path / "prompts.txt").write_text("a red ball\n\na cat\n")
    code, printed = run("--prompts", "prompts.txt", "-n", "2", "--seed", "7", "--model", "miniature", *TINY)
    assert (code, printed.count("loading miniature")) == (0, 1)
    clips = sorted(tmp_path.glob("clip-*.mp4"))
    assert [clip.name for clip in clips] == [f"clip-{number}.mp4" for number in (1, 2, 3, 4)]
    seeds = []
    for path in clips:
        with av.open(str(path)) as clip:
            seeds.append(clip.metadata["filmgate_seed"])
    assert seeds == ["7", "8", "7", "8"]


def test_every_clip_of_a_batch_is_checked_before_the_first_is_rendered(tmp_path, run):
    """Also for a model without a card, whose limits are known once it is loaded."""
    (tmp_path / "prompts.txt").write_text(f"a red ball\n{'long ' * 1000}\n")
    code, printed = run("--prompts", "prompts.txt", "--model", "miniature", *TINY)
    assert (code, list(tmp_path.glob("*.mp4"))) == (2, [])
    assert "prompt has 5000 characters; the limit is 4000" in printed


def test_a_clip_may_be_written_to_stdout_and_scaled(monkeypatch, capfdbinary, tmp_path):
    monkeypatch.chdir(tmp_path)
    tiny = ["--model", "miniature", "--size", "66x70", *TINY[2:]]
    monkeypatch.setenv("FILMGATE_ADMISSION__SCALED_SIZES", "66x70")
    monkeypatch.setattr(sys, "argv", ["filmgate", "generate", "a cat", "-o", "-", *tiny])
    with pytest.raises(SystemExit) as ended:
        main()
    written, printed = capfdbinary.readouterr()
    assert b"clip        stdout  (" in printed
    assert (ended.value.code, written[4:8], list(tmp_path.iterdir())) == (0, b"ftyp", [])
    with av.open(io.BytesIO(written)) as clip:
        assert (clip.streams.video[0].width, clip.streams.video[0].height) == (66, 70)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line_on_stderr(tmp_path):
    command = [sys.executable, "-m", "filmgate", "generate", "a cat", "-o", "-"]
    small = ["--model", "miniature", "--size", "64x64", "--frames", "5", "--steps", "1"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*command, *small], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last) == (1, "error: cannot write the clip to stdout: No space left on device")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a cat", "-o", "clip.gif"), "--output: clips are MP4 files; use clip.mp4 instead of clip.gif"),
        (("a cat", "-o", "-", "--json"), "--output: - writes a single clip"),
        (("a cat", "--prompts", "x.txt"), "PROMPT: give either PROMPT or --prompts FILE, not both"),
        (("--prompts", "missing.txt"), "--prompts: missing.txt cannot be read"),
        (
            ("a cat", "-n", "2", "--thumbnail", "t.jpg"),
            "--thumbnail: stills are written for a single clip only",
        ),
        (("a cat", "--seconds", "60"), "--seconds: flipbook renders 0.25 to 12 seconds"),
    ],
)
def test_options_are_checked_before_a_model_is_loaded(run, arguments, message):
    code, printed = run(*arguments)
    assert code == 2
    assert f"error: {message}" in printed
    assert "loading" not in printed


def test_generate_renders_in_this_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = filmgate.generate("a red ball", "ball.mp4", model="miniature", size="64x64", frames=5, steps=1)
    with av.open(str(path)) as clip:
        assert len(list(clip.decode(video=0))) == 5


def test_the_python_api_leaves_no_weights_in_memory(monkeypatch, tmp_path):
    """The next model may need the memory, and the modules of diffusers wait for a garbage collection."""

    def count_bytes():
        parameters = [each for each in gc.get_objects() if type(each) is torch.nn.Parameter]
        return sum(each.nbytes for each in parameters if each.device.type != "meta")

    monkeypatch.chdir(tmp_path)
    gc.collect()
    gc.disable()
    try:
        before = count_bytes()
        filmgate.generate("a red ball", model="miniature", size="64x64", frames=5, steps=1)
        assert count_bytes() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("prompt", ["", "  "])
def test_an_empty_prompt_is_refused_before_anything_is_loaded(run, prompt):
    code, printed = run(prompt, "--model", "nowhere")
    assert code == 2
    assert "PROMPT: the prompt is empty" in printed


def test_an_unwritable_folder_is_refused_before_anything_is_rendered(run):
    ended, printed = run("a cat", *QUICK, "-o", "/proc/filmgate/clip.mp4")
    assert ended == 2
    assert "--output" in printed
    assert "denoising" not in printed


def test_a_missing_gpu_is_an_error(tmp_path, run, monkeypatch):
    monkeypatch.setenv("FILMGATE_PIPELINE__DEVICE", "cuda:7")
    ended, printed = run("a cat", *QUICK)
    assert ended == 1
    assert "filmgate doctor" in printed
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path, run):
    with full_disk(2000):
        ended, printed = run("a cat", *QUICK)
    assert ended == 1
    assert "error: " in printed
    assert "Traceback" not in printed
    assert list(tmp_path.iterdir()) == []
