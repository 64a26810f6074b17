"""The model in the box, through Filmgate's own path: found by name, repeatable, in any shape."""

import pytest
import torch

from filmgate.jobs import Size
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.loading.loader import load_model, shipped_folder
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text.encode import Prompt
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request

MOST_BYTES = 40_000_000
CPU = PipelineSettings(device="cpu")


@pytest.fixture(scope="module")
def flipbook():
    return load_model("flipbook", CPU)


@pytest.fixture(scope="module")
def film(flipbook):
    """A small clip of two steps as its bytes: the path, not the picture."""
    renderer = Renderer(flipbook, CPU)

    def make(prompt="a red ball bounces", size="64x64", frames=9, seed=1):
        request = make_clip_request(flipbook, size=size, frames=frames, steps=2, seed=seed)
        asked = Prompt(prompt, "", request.guidance)
        return renderer.render(asked, request, None, ClipOutputs(), Control()).clip

    return make


def read(clip):
    return b"".join(clip.spool.chunks())


def test_it_has_its_own_defaults(flipbook):
    limits = flipbook.limits
    assert limits.size.default == Size(256, 256)
    named = (limits.frames, limits.fps, limits.steps, limits.guidance)
    assert [each.default for each in named] == [33, 16, 10, 1.0]


def test_its_weights_fit_the_package_and_carry_their_licence():
    folder = shipped_folder("flipbook")
    assert sum(file.stat().st_size for file in folder.rglob("*.safetensors")) <= MOST_BYTES
    assert "license: apache-2.0" in (folder / "README.md").read_text()


def test_the_same_seed_makes_the_same_bytes_and_another_seed_does_not(film):
    once = read(film())
    assert read(film()) == once
    assert read(film(seed=2)) != once


def test_another_prompt_makes_another_clip(film):
    assert read(film("a blue star spins at night")) != read(film())


@pytest.mark.parametrize(("size", "frames"), [("192x64", 5), ("64x128", 5), ("64x64", 1), ("64x64", 41)])
def test_wide_tall_short_and_long_clips_run(film, size, frames):
    clip = film(size=size, frames=frames)
    assert (f"{clip.shape.width}x{clip.shape.height}", clip.shape.frames) == (size, frames)


@pytest.mark.parametrize("prompt", ["", "qwzx 千本桜 🎬", "word " * 600])
def test_no_prompt_is_too_strange(film, prompt):
    assert film(prompt, frames=1).size_bytes > 0


def test_a_cpu_gets_convolutions_it_likes(flipbook):
    weights = [m.weight for m in flipbook.pipe.vae.modules() if isinstance(m, torch.nn.Conv3d)]
    assert all(w.is_contiguous(memory_format=torch.channels_last_3d) for w in weights)
