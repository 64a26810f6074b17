"""Winograd convolutions over time: they equal the convolution that they replace, within rounding."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from filmgate.pipeline.decode.fast import conv3d
from filmgate.pipeline.decode.fast.conv3d import (
    WinogradConv3d,
    convolve,
    replace_convolutions,
    to_frames_in_torch,
    to_points_in_torch,
)
from filmgate.pipeline.decode.fast.conv3d_kernels import to_points_on_gpu, write_frames_on_gpu


@pytest.fixture(autouse=True)
def small_pictures_too(monkeypatch):
    monkeypatch.setattr(conv3d, "MIN_PIXELS", 0)


def draw(channels, length):
    return torch.randn(1, channels, length, 5, 6).contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("max_values", [1, 1 << 27])  # one group at a time, and all at once
@pytest.mark.parametrize("padding", [(0, 1, 1), 0])
@pytest.mark.parametrize("length", [3, 4, 5, 8, 11])
@torch.inference_mode()
def test_it_equals_the_convolution_that_it_replaces(length, padding, max_values, monkeypatch):
    monkeypatch.setattr(conv3d, "MAX_VALUES", max_values)
    conv, frames = nn.Conv3d(8, 16, 3, padding=padding, bias=False), draw(8, length + 2)
    found = WinogradConv3d(conv)(frames)
    assert found.is_contiguous(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(found, conv(frames), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_short_and_small_clips_are_convolved_directly(monkeypatch):
    conv, short = nn.Conv3d(8, 16, 3, bias=False), draw(8, 4)
    monkeypatch.setattr(conv3d, "to_points", None)
    assert torch.equal(WinogradConv3d(conv)(short), conv(short))
    monkeypatch.setattr(conv3d, "MIN_PIXELS", 1000)
    small = draw(8, 10)
    assert torch.equal(WinogradConv3d(conv)(small), conv(small))


@torch.inference_mode()
def test_only_convolutions_of_three_frames_are_replaced_and_none_adds_its_bias():
    layers = nn.Sequential(nn.Conv3d(8, 8, 3), nn.Conv3d(8, 8, 1), nn.Conv3d(8, 8, 3, padding=1))
    replace_convolutions(layers)
    assert [isinstance(layer, WinogradConv3d) for layer in layers] == [True, False, False]
    frames = draw(8, 6)
    for layer in layers:
        layer.bias.fill_(100.0)
        assert convolve(layer, frames).abs().max() < 50


def test_the_weights_of_the_points_are_ready_on_their_own_gpu(monkeypatch):
    """Another GPU may be the current one: then its stream says nothing about these weights."""
    awaited = []

    def current_stream(device=None):
        return SimpleNamespace(synchronize=lambda: awaited.append(device))

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    weight = torch.randn(8, 8, 3, 3, 3)
    on_gpu = SimpleNamespace(device=weight.device, dtype=weight.dtype, is_cuda=True, float=lambda: weight)
    assert len(WinogradConv3d._points.func(SimpleNamespace(weight=on_gpu))) == 6
    assert awaited == [weight.device]


def test_the_kernels_match_the_reference():
    pictures = torch.randn(7, 3, 5, 8)  # of the second group, the last two frames are repeated
    points = to_points_on_gpu(pictures, 2)
    torch.testing.assert_close(torch.stack(points), to_points_in_torch(pictures, 2), rtol=1e-5, atol=1e-5)
    out = torch.empty(5, 3, 5, 8)
    write_frames_on_gpu(points, out)
    torch.testing.assert_close(out, to_frames_in_torch(points)[:5], rtol=1e-5, atol=1e-5)
