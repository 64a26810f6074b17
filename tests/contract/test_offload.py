"""Offloaded models: components or layers that are on the device only while they run.

The device of these tests is the CPU, where accelerate's hooks do the same as on a GPU.
"""

from dataclasses import replace

import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import CpuOffload, add_hook_to_module

from filmgate.errors import OutOfMemory, UsageError
from filmgate.pipeline.clip_writer import ClipOutputs, ClipWriter, stream_frames
from filmgate.pipeline.control import Control
from filmgate.pipeline.decode import check_choice, open_fast
from filmgate.pipeline.decode.fast import decoder as fast_decoder
from filmgate.pipeline.encode.encoder import EncodeOptions
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.loading.memory import Offload
from filmgate.pipeline.render import Renderer
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request
from tests.zoo_vaes import RECIPES, build_vae, draw_latents

pytestmark = pytest.mark.usefixtures("no_thread_left")
CPU = PipelineSettings(device="cpu", encoder="software")
SOFTWARE = EncodeOptions(encoder="software")


class WatchedOffload(CpuOffload):
    """Offloads a component as diffusers does, and lists its moves."""

    def __init__(self, moves):
        super().__init__(torch.device("cpu"))
        self.moves = moves

    def init_hook(self, module):
        self.moves.append("host")
        return super().init_hook(module)

    def pre_forward(self, module, *args, **kwargs):
        self.moves.append("device")
        return super().pre_forward(module, *args, **kwargs)


def offload_layers(module):
    """As `enable_sequential_cpu_offload` does, which does not take a CPU."""
    return cpu_offload(module, torch.device("cpu"), offload_buffers=len(module._parameters) > 0)


def offload_component(vae, moves=None):
    return add_hook_to_module(vae, WatchedOffload([] if moves is None else moves))


@pytest.mark.parametrize("offload", [offload_layers, offload_component])
@pytest.mark.parametrize("name", RECIPES)
def test_an_offloaded_vae_decodes_to_the_same_clip(name, offload, tmp_path):
    latents = draw_latents(name, build_vae(name))
    clips = []
    for vae in (build_vae(name), offload(build_vae(name))):
        path = tmp_path / f"{len(clips)}.mp4"
        clips.append(ClipWriter(vae, SOFTWARE).write(latents, path).path.read_bytes())
    assert clips[0] == clips[1]


def test_a_vae_that_does_not_fit_is_an_error_with_the_remedy(tmp_path, monkeypatch):
    def run_out(*_):
        raise torch.OutOfMemoryError

    vae = offload_component(build_vae("wan2.1"))
    monkeypatch.setattr(CpuOffload, "pre_forward", run_out)
    with pytest.raises(OutOfMemory, match="the VAE does not fit into GPU memory; free memory"):
        ClipWriter(vae, SOFTWARE).write(draw_latents("wan2.1", vae), tmp_path / "clip.mp4")


def test_offloaded_layers_with_noise_decode_to_the_same_frames():
    vaes = [build_vae("ltx-0.9.5", decoder_inject_noise=(True,) * 4) for _ in range(2)]
    for name, scale in (named for vae in vaes for named in vae.named_parameters()):
        if "per_channel_scale" in name:
            torch.nn.init.constant_(scale, 0.3)
    latents = draw_latents("ltx-0.9.5", vaes[0])
    offload_layers(vaes[1])
    one, other = (list(stream_frames(vae, latents)) for vae in vaes)
    assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_an_offloaded_vae_is_back_on_the_host_when_the_next_clip_may_start(tmp_path):
    moves = []
    vae = offload_component(build_vae("wan2.1"), moves)
    control = Control()
    control.leave_device = lambda: moves.append("next clip")
    moves.clear()
    ClipWriter(vae, SOFTWARE).write(draw_latents("wan2.1", vae), tmp_path / "clip.mp4", control=control)
    assert moves[-2:] == ["host", "next clip"]
    assert moves.count("host") == 1


def test_the_converted_weights_of_an_offloaded_vae_leave_the_device_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("filmgate.pipeline.clip_writer.open_decoder", lambda vae, *_: open_fast(vae))
    kept, freed = build_vae("wan2.1"), offload_component(build_vae("wan2.1"))
    for vae in (kept, freed):
        ClipWriter(vae, SOFTWARE).write(draw_latents("wan2.1", vae), tmp_path / "clip.mp4")
    assert kept in fast_decoder._networks
    assert freed not in fast_decoder._networks


def test_a_required_fast_decoder_is_refused_before_denoising_if_layers_are_offloaded():
    vae = offload_layers(build_vae("wan2.1").to(torch.bfloat16))
    with pytest.raises(UsageError, match="the layers of the VAE are offloaded"):
        check_choice(vae, "fast", torch.device("cuda"))


@pytest.mark.parametrize("offload", [Offload.MODEL, Offload.LAYERS])
@pytest.mark.parametrize("name", ["wan2.1", "ltx-0.9.5", "cogvideox", "hunyuanvideo"])
def test_an_offloaded_model_renders_two_clips(model, model_folder, name, offload, tmp_path):
    request = make_clip_request(model(name), "32x32", frames=9, steps=2, seed=1)
    loaded = load_model(str(model_folder(name)), CPU)
    if offload is Offload.MODEL:
        loaded.pipe.enable_model_cpu_offload(device="cpu")
    else:
        for part in loaded.pipe.components.values():
            if isinstance(part, torch.nn.Module):
                offload_layers(part)
    loaded = replace(loaded, placement=replace(loaded.placement, offload=offload))
    plain, offloaded = Renderer(model(name), CPU), Renderer(loaded, CPU)

    def render(renderer):
        path = tmp_path / "clip.mp4"
        renderer.render(request, path, ClipOutputs(), Control())
        return path.read_bytes()

    assert [render(offloaded), render(offloaded)] == [render(plain)] * 2
