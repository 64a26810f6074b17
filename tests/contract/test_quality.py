"""Quality levels: off by default, and no cached step is reused by the next clip."""

import pytest
import torch

from filmgate.errors import Cancelled, SettingsError
from filmgate.pipeline.control import Control, Stage
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text.encode import Prompt
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request


def settings(quality):
    return PipelineSettings(device="cpu", quality=quality)


@pytest.fixture
def load(model_folder):
    """A separate copy of the model for each level, because step caches are hooks on its blocks."""
    return lambda quality, name="wan2.1": load_model(str(model_folder(name)), settings(quality))


def request_of(model):
    return make_clip_request(model, size="64x64", frames=5, steps=6, seed=3, guidance=5.0)


def denoised(model, quality, prompt="a cat", control=None):
    request = request_of(model)
    renderer = Renderer(model, settings(quality))
    return renderer.denoise(Prompt(prompt, "", request.guidance), request, control or Control()).latents


def count_passes(load, quality):
    """How often the last block ran while a clip was denoised at this level."""
    model, calls = load(quality), []
    model.pipe.transformer.blocks[-1].attn1.register_forward_hook(lambda *_: calls.append(1))
    denoised(model, quality)
    return len(calls)


def test_full_quality_caches_no_step(load):
    model = load("full")
    assert not model.pipe.transformer.is_cache_enabled
    request = request_of(model)
    assert request.guidance > 1  # two passes per step
    assert count_passes(load, "full") == 2 * request.steps


def test_a_lower_level_skips_more_passes(load):
    full, balanced, draft = (count_passes(load, quality) for quality in ("full", "balanced", "draft"))
    assert full >= balanced > draft


def test_both_experts_use_the_cache(load):
    pipe = load("draft", "wan2.2-two-experts").pipe
    assert pipe.transformer.is_cache_enabled
    assert pipe.transformer_2.is_cache_enabled


def test_a_family_without_quality_levels_names_the_setting(load):
    with pytest.raises(SettingsError, match="ltx") as caught:
        load("draft", "ltx")
    assert caught.value.option == "pipeline.quality"


def test_a_cancelled_clip_leaves_no_cached_step_for_the_next(load):
    """Another prompt with the same noise, after a cancel in the first step, is the likeliest false hit."""
    control = Control(lambda progress: control.cancel() if progress.stage is Stage.DENOISE else None)
    model = load("draft")
    with pytest.raises(Cancelled):
        denoised(model, "draft", "a red ball", control)
    assert torch.equal(denoised(model, "draft"), denoised(load("draft"), "draft"))
