"""Weights in eight bits: their error on Flipbook, their memory, and adapters on top of them."""

import math

import pytest
import torch

from filmgate.errors import SettingsError
from filmgate.pipeline.canary import describe_setup
from filmgate.pipeline.control import Control
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.loading.memory import component_bytes, estimate_bytes, loaded_bytes
from filmgate.pipeline.loading.quantization import FORMATS, QuantizedLinear, quantize
from filmgate.pipeline.render import Renderer
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request


def settings(weights="full"):
    return PipelineSettings(device="cpu", weights=weights)


def denoised(model, weights):
    prompt = "a red ball rolls over the grass"
    request = make_clip_request(model, size="64x64", prompt=prompt, frames=9, steps=4, seed=3)
    return Renderer(model, settings(weights)).denoise(request, Control()).latents


@pytest.fixture(scope="module")
def flipbook():
    """Latents of the same clip by precision."""
    return {
        weights: denoised(load_model("flipbook", settings(weights)), weights)
        for weights in ("full", *FORMATS)
    }


@pytest.mark.parametrize(("weights", "decibels"), [("int8", 30), ("fp8", 15)])
def test_the_error_of_a_whole_clip_on_trained_weights_is_small(flipbook, weights, decibels):
    """Signal to error of the latents. The PSNR of finished clips is in docs/denoiser.md."""
    full, quantized = flipbook["full"], flipbook[weights]
    error = torch.dist(full, quantized)
    assert error > 0
    assert 20 * math.log10(full.norm() / error) > decibels


@pytest.mark.parametrize("dtype", FORMATS.values())
def test_each_row_has_its_own_scale(dtype):
    weight = (
        torch.randn(8, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 4, 8)[:, None]
    )
    weight[3] = 0
    quantized, scales = quantize(weight, dtype)
    errors = (quantized.float() * scales - weight).norm(dim=1) / weight.norm(dim=1).clamp(min=1e-9)
    assert quantized.element_size() == 1
    assert errors.max() < 0.04


@pytest.mark.parametrize("family", ["wan2.1", "ltx", "cogvideox"])
def test_memory_is_counted_before_loading_as_it_is_after(model_folder, family):
    folder = model_folder(family)
    model = load_model(str(folder), settings("int8"))
    counted, held = component_bytes(folder, torch.float32, "int8"), loaded_bytes(model.pipe)
    assert counted["transformer"] < component_bytes(folder, torch.float32)["transformer"]
    scales = sum(
        layer.scales.nbytes
        for layer in model.pipe.transformer.modules()
        if isinstance(layer, QuantizedLinear)
    )
    assert held["transformer"] == counted["transformer"] + scales
    full, small = (estimate_bytes(str(folder), settings(weights), None) for weights in ("full", "int8"))
    assert small < full


def test_a_golden_clip_belongs_to_one_precision(model_folder):
    folder = str(model_folder("wan2.1"))
    setups = {describe_setup(load_model(folder, settings(weights))) for weights in ("full", *FORMATS)}
    assert len(setups) == 3


def test_a_model_without_transformer_blocks_names_the_setting(model_folder):
    with pytest.raises(SettingsError, match="int8 needs transformer blocks") as caught:
        load_model(str(model_folder("svd")), settings("int8"))
    assert caught.value.option == "pipeline.weights"
