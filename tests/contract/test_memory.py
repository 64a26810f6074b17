"""Offload, device and dtype, and the size of a model from the headers of its files."""

import json
import resource
import struct
import sys
from types import SimpleNamespace

import pytest
import torch

from filmgate.errors import DeviceError, ModelError
from filmgate.pipeline.loading import memory
from filmgate.pipeline.loading.memory import (
    ACTIVATION_BYTES,
    HEADROOM,
    Offload,
    budget_bytes,
    choose_device,
    choose_dtype,
    choose_offload,
    component_bytes,
    estimate_bytes,
)
from filmgate.pipeline.render import peak_host_bytes
from filmgate.settings import PipelineSettings
from filmgate.worker.gpu_runner import GpuRunner

GIB = 1 << 30
WAN_14B = {"transformer": 28_577 << 20, "text_encoder": 11_362 << 20, "vae": 254 << 20}


@pytest.mark.parametrize(
    ("free_gib", "expected"),
    [(80, Offload.NONE), (40, Offload.MODEL), (24, Offload.LAYERS), (2, Offload.LAYERS)],
)
def test_the_less_memory_is_free_the_more_is_offloaded(free_gib, expected):
    assert choose_offload(WAN_14B, free_gib * GIB) is expected


def test_weights_with_headroom_must_fit_beside_the_activations():
    edge = int(sum(WAN_14B.values()) * HEADROOM) + ACTIVATION_BYTES + 1
    assert choose_offload(WAN_14B, edge) is Offload.NONE
    assert choose_offload(WAN_14B, edge - 1000) is Offload.MODEL


def test_component_bytes_match_the_loaded_weights(model_folder, model):
    sizes = component_bytes(model_folder("wan2.1"), torch.float32)
    pipe = model("wan2.1").pipe
    loaded = {
        name: sum(p.numel() * 4 for p in getattr(pipe, name).parameters())
        for name in ("transformer", "text_encoder", "vae")
    }
    assert sizes == loaded
    assert component_bytes(model_folder("wan2.1"), torch.bfloat16) == {k: v // 2 for k, v in loaded.items()}


def test_a_gpu_with_less_memory_than_activations_can_take_still_loads_models(model_folder, monkeypatch):
    """A laptop GPU of 4 GB has a little less than 4 GiB."""
    monkeypatch.setattr(memory, "choose_device", torch.device)
    small = SimpleNamespace(total_memory=ACTIVATION_BYTES - (100 << 20))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: small)
    settings = PipelineSettings(device="cuda")
    budget = budget_bytes(settings)
    for location in ("flipbook", str(model_folder("wan2.1"))):
        assert estimate_bytes(location, settings, budget) <= budget


def header(tensors) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


ONE = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}


def test_shards_are_added_up_and_metadata_is_not_counted(tmp_path):
    (tmp_path / "vae").mkdir()
    for n in range(2):
        data = header({"__metadata__": {"format": "pt"}, **ONE}) + bytes(24)
        (tmp_path / "vae" / f"part-{n}.safetensors").write_bytes(data)
    assert component_bytes(tmp_path, torch.bfloat16) == {"vae": 2 * 6 * 2}


@pytest.mark.parametrize("name", ["model.fp16", "model.fp16-00001-of-00002", "model-00001-of-00002.bf16"])
def test_variants_are_not_counted_because_diffusers_does_not_load_them(tmp_path, name):
    (tmp_path / "unet").mkdir()
    for file in ("model", name):
        (tmp_path / "unet" / f"{file}.safetensors").write_bytes(header(ONE) + bytes(24))
    assert component_bytes(tmp_path, torch.float32) == {"unet": 24}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x01",
        struct.pack("<Q", 50) + b"{",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**64 - 1) + b"{}",
        header([1, 2]),
        header({"w": {"dtype": "F32"}}),
        header({"w": 7}),
        header(ONE),
        header(ONE) + bytes(23),
    ],
    ids=[
        "empty",
        "truncated length",
        "truncated header",
        "huge length",
        "largest length",
        "no table",
        "no shape",
        "no tensor",
        "no data",
        "truncated data",
    ],
)
def test_a_file_that_is_not_safetensors_is_a_model_error_with_its_name(data, tmp_path):
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match="model.safetensors is not a readable safetensors file"):
        component_bytes(tmp_path, torch.float32)


def test_a_folder_without_weights_has_no_components(tmp_path):
    assert component_bytes(tmp_path, torch.float32) == {}


def test_auto_chooses_the_dtype_by_device():
    assert choose_dtype("auto", torch.device("cpu")) is torch.float32
    assert choose_dtype("auto", torch.device("cuda")) is torch.bfloat16
    assert choose_dtype("float16", torch.device("cpu")) is torch.float16


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0", "cuda:7"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_an_error_that_names_the_remedy(wanted):
    with pytest.raises(DeviceError, match="run `filmgate doctor`, or set pipeline.device to auto or cpu"):
        choose_device(wanted)


@pytest.mark.parametrize("wanted", ["gpu", "cuda:x", "", "meta", "mps"])
def test_an_unknown_device_is_an_error_that_lists_the_known_ones(wanted):
    with pytest.raises(DeviceError, match="use auto, cpu, cuda or cuda:N"):
        choose_device(wanted)


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes_on_every_platform(monkeypatch, platform, unit):
    """Linux reports KiB, macOS bytes."""
    monkeypatch.setattr(sys, "platform", platform)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert peak <= peak_host_bytes() < peak * 1.1


def test_a_model_that_is_larger_than_the_gpu_needs_memory_for_what_is_on_it_at_one_time(model_folder):
    """A worker loads it offloaded, instead of rejecting it."""
    folder = model_folder("wan2.1")
    sizes = component_bytes(folder, torch.float32)
    whole, largest = (int(size * HEADROOM) for size in (sum(sizes.values()), max(sizes.values())))

    def needed(budget, offload="auto"):
        return estimate_bytes(str(folder), PipelineSettings(device="cpu", offload=offload), budget)

    assert (needed(None), needed(whole + 1), needed(whole // 2, "none")) == (whole, whole, whole)
    assert (needed(whole - 1), needed(None, "model")) == (largest, largest)
    assert (needed(largest // 2), needed(None, "layers")) == (0, 0)


def test_a_worker_with_a_small_gpu_loads_the_model(model_folder, monkeypatch):
    monkeypatch.setattr("filmgate.worker.gpu_runner.budget_bytes", lambda _: 1)
    runner = GpuRunner({"wan": str(model_folder("wan2.1"))}, PipelineSettings(device="cpu"))
    assert runner._loaded.get("wan")[0].name == "wan"
