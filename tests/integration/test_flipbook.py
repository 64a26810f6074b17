"""Flipbook, the model in the package: loaded by name, repeatable, in any supported shape."""

from dataclasses import replace

import pytest
import torch

from filmgate.jobs import Size
from filmgate.models.names import shipped_folder
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.render import Renderer
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request

MAX_WEIGHT_BYTES = 40_000_000
CPU = PipelineSettings(device="cpu")


@pytest.fixture(scope="module")
def flipbook():
    return load_model("flipbook", CPU)


@pytest.fixture(scope="module")
def render(flipbook):
    """Renders a small clip in two steps: these tests check the path, not the picture."""
    renderer = Renderer(flipbook, CPU)

    def render_clip(prompt="a red ball bounces", size="64x64", frames=9, seed=1):
        request = make_clip_request(flipbook, size=size, frames=frames, steps=2, seed=seed)
        return renderer.render(replace(request, prompt=prompt), None, ClipOutputs(), Control()).clip

    return render_clip


def read(clip):
    return b"".join(clip.spool.chunks())


def test_flipbook_has_its_own_defaults(flipbook):
    limits = flipbook.limits
    assert limits.size.default == Size(256, 256)
    fields = (limits.frames, limits.fps, limits.steps, limits.guidance)
    assert [each.default for each in fields] == [33, 16, 10, 1.0]


def test_the_weights_are_small_enough_for_the_package_and_have_a_licence():
    folder = shipped_folder("flipbook")
    assert sum(file.stat().st_size for file in folder.rglob("*.safetensors")) <= MAX_WEIGHT_BYTES
    assert "license: apache-2.0" in (folder / "README.md").read_text()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(render):
    once = read(render())
    assert read(render()) == once
    assert read(render(seed=2)) != once


def test_another_prompt_gives_another_clip(render):
    assert read(render("a blue star spins at night")) != read(render())


@pytest.mark.parametrize(("size", "frames"), [("192x64", 5), ("64x128", 5), ("64x64", 1), ("64x64", 41)])
def test_wide_tall_short_and_long_clips_render(render, size, frames):
    clip = render(size=size, frames=frames)
    assert (f"{clip.shape.width}x{clip.shape.height}", clip.shape.frames) == (size, frames)


@pytest.mark.parametrize("prompt", ["", "qwzx 千本桜 🎬", "word " * 600])
def test_unusual_prompts_render(render, prompt):
    assert render(prompt, frames=1).size_bytes > 0


def test_convolution_weights_are_channels_last_on_a_cpu(flipbook):
    weights = [m.weight for m in flipbook.pipe.vae.modules() if isinstance(m, torch.nn.Conv3d)]
    assert all(w.is_contiguous(memory_format=torch.channels_last_3d) for w in weights)
