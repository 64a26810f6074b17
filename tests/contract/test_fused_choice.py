"""Whether a model's denoiser runs on fused kernels: support, self-test, timed trial, and failures.

The kernels run in Triton's interpreter (see tests/conftest.py).
"""

from dataclasses import replace

import pytest
import torch
from diffusers import FirstBlockCacheConfig
from triton.runtime.errors import OutOfResources

from filmgate.pipeline import trials
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise import acceleration
from filmgate.pipeline.denoise.acceleration import MAX_ERROR, Denoiser, is_supported, largest_error
from filmgate.pipeline.denoise.attention import torch_attention
from filmgate.pipeline.denoise.fused.wan import FusedWan
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.loading.memory import Offload, Placement
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.trials import CACHE_VARIABLE, FILE_NAME, Trial, read_trials
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request
from tests.zoo import build_pipeline

AUTO = PipelineSettings(device="cuda")
SHAPE = (1, 4, 4)


@pytest.fixture
def on_a_gpu(model, monkeypatch):
    """A model whose placement names a GPU that supports the kernels; nothing runs there."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(acceleration, "find_missing_tool", lambda: None)

    def place(name="wan2.1", dtype=torch.bfloat16, offload=Offload.NONE, device="cuda"):
        return replace(model(name), placement=Placement(torch.device(device), dtype, offload))

    return place


@pytest.fixture
def small_trials(monkeypatch, tmp_path):
    """Short passes, because the interpreter is slow; results of trials go to an empty folder."""
    monkeypatch.setattr(acceleration, "TEST_LATENTS", SHAPE)
    monkeypatch.setattr(acceleration, "TRIAL_LATENTS", SHAPE)
    monkeypatch.setattr(acceleration, "time_both", lambda *_: Trial(fast_seconds=1, exact_seconds=2))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))


def test_only_supported_models_and_settings_try_the_kernels(on_a_gpu):
    assert is_supported(on_a_gpu(), AUTO)
    for name in ("wan2.2-two-experts", "ltx", "cogvideox"):
        assert is_supported(on_a_gpu(name, torch.float16), AUTO)
    for fields in ({"kernels": "off"}, {"compile": "on"}):
        assert not is_supported(on_a_gpu(), AUTO.model_copy(update=fields))
    for place in ({"offload": Offload.MODEL}, {"dtype": torch.float32}, {"device": "cpu"}, {"name": "svd"}):
        assert not is_supported(on_a_gpu(**place), AUTO)


def test_an_older_gpu_does_not_try_the_kernels(on_a_gpu, monkeypatch):
    model = on_a_gpu()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert not is_supported(model, AUTO)


@pytest.fixture
def denoiser(model, small_trials):
    """As on a GPU, undecided, where nothing is compiled."""
    found = Denoiser(model("wan2.1"), PipelineSettings(device="cpu"), is_reused=True)
    found.fused.networks = None
    return found


@pytest.mark.usefixtures("small_trials")
def test_clips_run_fused_once_that_is_proven(model):
    """One clip through the renderer, fused and not, on the same weights."""
    loaded = model("wan2.1")
    request = make_clip_request(loaded, size="16x16", frames=1, steps=2, seed=1)
    renderer = Renderer(loaded, PipelineSettings(device="cpu"))
    expected = renderer.denoise(request, Control()).latents
    assert not renderer._denoiser.fused.networks
    renderer._denoiser.fused.networks = None  # as on a GPU
    renderer._denoiser.decide()
    found = renderer.denoise(request, Control()).latents
    assert renderer._denoiser.fused.networks
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert "forward" not in vars(loaded.pipe.transformer)  # a change of settings finds it as it was


def test_kernels_are_chosen_when_the_first_clip_has_the_device(model, denoiser, monkeypatch):
    """A trial beside another clip would be wrong, and its result would stay on disk."""
    loaded, calls = model("wan2.1"), []
    request = make_clip_request(loaded, size="16x16", frames=1, steps=1, seed=1)
    renderer = Renderer(loaded, PipelineSettings(device="cpu"))
    renderer._denoiser, renderer._device = denoiser, torch.device("cuda")
    monkeypatch.setattr(
        denoiser.fused, "decide", lambda: calls.append("fused") or setattr(denoiser.fused, "networks", [])
    )
    monkeypatch.setattr("filmgate.pipeline.render.open_decoder", lambda *_, **__: calls.append("decoder"))
    control = Control()
    control.prepare_device = lambda: calls.append("prepare")
    control.enter_device = lambda: calls.append("enter")
    for _ in range(2):
        renderer.queue_denoising(request, control)
    assert calls == ["enter", "fused", "decoder", "prepare", "enter", "prepare", "enter"]


def test_a_step_cache_keeps_the_passes_that_it_has_replaced(denoiser):
    network = build_pipeline("wan2.1").transformer
    denoiser.fused.networks = [FusedWan(network, torch_attention)]
    network.enable_cache(FirstBlockCacheConfig(threshold=0.1))
    assert not denoiser.fused.may_run(is_single=True)
    network.disable_cache()
    assert denoiser.fused.may_run(is_single=True)


@pytest.mark.usefixtures("small_trials")
def test_a_wrong_kernel_is_found_before_the_first_clip():
    fused = FusedWan(build_pipeline("wan2.1").transformer.eval(), lambda query, _key, _value: query)
    with torch.inference_mode():
        assert largest_error([fused]) > MAX_ERROR


@pytest.mark.parametrize(("fast", "is_used"), [(1, True), (3, False)])
def test_fused_blocks_are_used_where_they_win_the_trial(denoiser, monkeypatch, fast, is_used):
    runs = []
    monkeypatch.setattr(acceleration, "time_both", lambda *_: runs.append(1) or Trial(fast, 2))
    for _ in range(2):  # the second process reads the result of the first
        denoiser.fused.networks = None
        denoiser.decide()
        assert bool(denoiser.fused.networks) is is_used
    assert len(runs) == 1


def test_a_denoiser_without_fused_kernels_is_decided_without_a_warning(denoiser, monkeypatch, caplog):
    monkeypatch.setattr(acceleration, "open_fused", lambda _: [])
    denoiser.decide()
    assert (denoiser.fused.networks, caplog.records) == ([], [])


def test_the_next_clip_decides_if_there_was_not_enough_memory_to_try(denoiser, monkeypatch, caplog):
    def full(_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(acceleration, "open_fused", full)
        denoiser.decide()
    assert not denoiser.is_decided
    assert "not using fused kernels: not enough GPU memory" in caplog.text
    assert denoiser.run(lambda: "eager", is_single=False) == "eager"
    denoiser.decide()
    assert denoiser.fused.networks


@pytest.mark.parametrize("is_reused", [False, True])
def test_fused_blocks_are_timed_against_what_runs_without_them(
    model_folder, small_trials, monkeypatch, tmp_path, is_reused
):
    """In a worker that compiles, compiled blocks; otherwise diffusers' own."""
    monkeypatch.setattr(acceleration, "should_compile", lambda *_, is_reused: is_reused)
    loaded = load_model(str(model_folder("wan2.1")), PipelineSettings(device="cpu"))
    denoiser = Denoiser(loaded, PipelineSettings(device="cpu"), is_reused=is_reused)
    denoiser.compiled._backend = "eager"
    denoiser.fused.networks, seen = None, []

    def time_both(fast, exact, _device):
        seen.append(any(block._compiled_call_impl for block in loaded.pipe.transformer.blocks))
        fast()
        exact()
        return Trial(1, 2)

    monkeypatch.setattr(acceleration, "time_both", time_both)
    denoiser.decide()
    assert seen == [is_reused]
    (key,) = read_trials(tmp_path / FILE_NAME)
    assert f"blocks, wan against {'compiled' if is_reused else 'eager'}, " in key
    torch.compiler.reset()


def test_another_version_of_flash_attention_repeats_the_trial(denoiser, monkeypatch, tmp_path):
    for version in ("none", "4.0.0"):
        monkeypatch.setattr(trials, "_version", lambda name, version=version: f"{name} {version}")
        denoiser.fused.networks = None
        denoiser.decide()
    assert len(read_trials(tmp_path / FILE_NAME)) == 2


@pytest.mark.parametrize(
    "error", [RuntimeError("no space left on device"), OutOfResources(300_000, 232_448, "shared memory")]
)
def test_a_failure_in_a_clip_ends_the_use_of_the_kernels(denoiser, caplog, error):
    network = FusedWan(build_pipeline("wan2.1").transformer, torch_attention)
    denoiser.fused.networks = [network]

    def work():
        if "forward" in vars(network._network):
            raise error
        return "eager"

    assert denoiser.run(work, is_single=False) == "eager"
    assert denoiser.fused.networks == []
    assert "the fused kernels failed" in caplog.text
    assert "forward" not in vars(network._network)


def test_an_error_of_the_request_does_not_end_the_use_of_the_kernels(denoiser):
    denoiser.fused.networks = [FusedWan(build_pipeline("wan2.1").transformer, torch_attention)]

    def work():
        raise RuntimeError("the sizes of tensors must match")

    with pytest.raises(RuntimeError, match="must match"):
        denoiser.run(work, is_single=False)
    assert denoiser.fused.networks
