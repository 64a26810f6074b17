"""The fused denoiser: equal to diffusers' own passes, proven at the first clip, and given up when it fails.

Its kernels run in Triton's interpreter (see tests/conftest.py).
"""

from dataclasses import replace

import diffusers
import pytest
import torch
from diffusers import FirstBlockCacheConfig

from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise.attention import torch_attention
from filmgate.pipeline.denoise.fused import choice, cogvideox, ltx
from filmgate.pipeline.denoise.fused.choice import FusedDenoiser, is_exact, is_supported
from filmgate.pipeline.denoise.fused.cogvideox import FusedCogVideoX
from filmgate.pipeline.denoise.fused.ltx import FusedLtx
from filmgate.pipeline.denoise.fused.network import Remembered
from filmgate.pipeline.denoise.fused.wan import FusedWan, can_fuse
from filmgate.pipeline.kernel_cache import CACHE_VARIABLE
from filmgate.pipeline.loading.memory import Offload, Placement
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text.encode import Prompt
from filmgate.pipeline.trials import Trial
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request
from tests.zoo import build_pipeline

AUTO = PipelineSettings(device="cuda")
SHAPE = (1, 4, 4)


@pytest.fixture
def on_a_gpu(model, monkeypatch):
    """A model whose placement names a GPU that supports the kernels; nothing runs there."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(choice, "find_missing_tool", lambda: None)

    def place(name="wan2.1", dtype=torch.bfloat16, offload=Offload.NONE, device="cuda"):
        return replace(model(name), placement=Placement(torch.device(device), dtype, offload))

    return place


@pytest.fixture
def small_trials(monkeypatch, tmp_path):
    """Short passes, because the interpreter is slow; results of trials go to an empty folder."""
    monkeypatch.setattr(choice, "TEST_LATENTS", SHAPE)
    monkeypatch.setattr(choice, "TRIAL_LATENTS", SHAPE)
    monkeypatch.setattr(choice, "_run_trial", lambda *_: Trial(fast_seconds=1, exact_seconds=2))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))


def _ltx():
    return diffusers.LTXVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,  # a width that is no power of two, and no multiple of six
        cross_attention_dim=20,
        num_layers=2,
        caption_channels=8,
    )


def _cogvideox(**others):
    return diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=3,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=8,
        num_layers=2,
        sample_width=4,
        sample_height=4,
        sample_frames=1,
        max_text_seq_length=6,  # no multiple of the rows of a program
        **others,
    )


ROTARY = {"use_rotary_positional_embeddings": True}
NETWORKS = {
    "wan2.1": (FusedWan, lambda: build_pipeline("wan2.1").transformer),
    "wan-image": (FusedWan, lambda: build_pipeline("wan-image").transformer),
    "ltx": (FusedLtx, _ltx),
    "cogvideox-2b": (FusedCogVideoX, _cogvideox),
    "cogvideox-1.5-image": (
        FusedCogVideoX,
        lambda: _cogvideox(**ROTARY, patch_size_t=2, ofs_embed_dim=8),
    ),
}


def open_network(name, dtype=torch.float32):
    """A fused denoiser with small random weights, and short passes for it."""
    fused, build = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build().eval().to(dtype)
        for norm in (one for one in network.modules() if isinstance(one, torch.nn.LayerNorm)):
            if norm.weight is not None:  # as trained: not one and zero
                torch.nn.init.normal_(norm.weight, mean=1.0, std=0.1)
                torch.nn.init.normal_(norm.bias, std=0.1)
    found = fused(network, torch_attention)
    shapes = {"wan": SHAPE, "ltx": (1, 1, 4), "cog": (1, 2, 4)}  # the interpreter is slow
    return found, found.examples(shapes[name[:3]])


@torch.inference_mode()
def run_fused(fused, inputs):
    fused.switch_on()
    try:
        return fused.run(inputs)
    finally:
        fused.switch_off()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fused_pass_equals_the_pass_of_diffusers(name):
    fused, examples = open_network(name)
    for inputs in examples:  # one moment for the clip, then, where the model has that, one for each token
        with torch.inference_mode():
            expected = fused.run(inputs)
            fused.switch_on()
            found = [fused.run(inputs) for _ in range(2)]  # the second reads what the first kept
            fused.switch_off()
            assert torch.equal(fused.run(inputs), expected)
        for one in found:
            torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["ltx", "cogvideox-1.5-image"])
def test_a_fused_pass_in_bfloat16_is_about_as_close_to_float32_as_that_of_diffusers(name):
    """Which of two short passes is closer depends on how a CPU adds up; tests/gpu compares long ones."""
    exact, (inputs, *_) = open_network(name)
    half, _ = open_network(name, torch.bfloat16)
    fused_error = eager_error = 0.0
    for seed in range(3):
        noise = torch.randn(inputs["hidden_states"].shape, generator=torch.Generator().manual_seed(seed))
        given = inputs | {"hidden_states": noise}
        rounded = {key: _halved(value) for key, value in given.items()}
        with torch.inference_mode():
            reference, eager = exact.run(given), half.run(rounded).float()
        fused_error += (run_fused(half, rounded).float() - reference).square().sum()
        eager_error += (eager - reference).square().sum()
    assert fused_error.sqrt() < 1.5 * eager_error.sqrt()


def _halved(value):
    is_noise = isinstance(value, torch.Tensor) and value.ndim > 2
    return value.to(torch.bfloat16) if is_noise else value


def test_prompts_of_a_guided_step_are_masked_apart():
    """LTX runs both prompts as one batch; the padding of one must not reach its answer."""
    fused, (inputs, _) = open_network("ltx")
    padding = inputs["encoder_attention_mask"] == 0
    other = inputs["encoder_hidden_states"].masked_fill(padding[..., None], 3.0)
    found, expected = run_fused(fused, inputs | {"encoder_hidden_states": other}), run_fused(fused, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    inputs["encoder_hidden_states"].mul_(-1)  # the same object with other content: another clip
    assert not torch.allclose(run_fused(fused, inputs), expected, rtol=1e-2)


def test_both_passes_of_a_guided_step_share_what_does_not_depend_on_the_prompt():
    network = build_pipeline("wan2.1").transformer.eval()
    fused = FusedWan(network, torch_attention)
    counts = dict.fromkeys(("time", "patches", "text", "keys"), 0)

    def count(name, compute):
        def counted(*arguments):
            counts[name] += 1
            return compute(*arguments)

        return counted

    kept = {
        "time": fused._time,
        "patches": fused._patches,
        "text": fused._text,
        "keys": fused._blocks[0].text,
    }
    for name, one in kept.items():
        one._compute = count(name, one._compute)
    inputs = fused.examples(SHAPE)[0]
    prompts = [inputs["encoder_hidden_states"], -inputs["encoder_hidden_states"]]
    fused.switch_on()
    with torch.inference_mode():
        for _ in range(3):  # steps: the pipeline makes new latents and a new time step for each
            step = inputs | {name: inputs[name].clone() for name in ("hidden_states", "timestep")}
            for prompt in prompts:
                fused.run(step | {"encoder_hidden_states": prompt})
    assert counts == {"time": 3, "patches": 3, "text": 2, "keys": 2}


def test_remembered_results_belong_to_the_same_objects_and_end_with_the_clip():
    calls = []
    kept = Remembered(lambda one: calls.append(one) or len(calls), count=2)
    first, second, third = (torch.zeros(1) for _ in range(3))  # equal, but not the same
    assert [kept(first), kept(second), kept(first), kept(third), kept(first)] == [1, 2, 1, 3, 4]
    assert [kept(600), kept(int("600"))] == [5, 5]
    kept.clear()
    assert kept(third) == 6


def test_what_was_kept_of_a_clip_is_overwritten_when_it_ends():
    kept = Remembered(lambda text: [(text + 1, text + 2)])
    ((key, value),) = kept(torch.zeros(3))
    kept.clear()
    assert not torch.cat([key, value]).any()


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


def test_a_configuration_without_norms_and_weights_of_another_kind_are_not_fused():
    network = build_pipeline("wan2.1").transformer
    assert can_fuse(network)
    network.blocks[0].attn1.to_q.bias = None
    assert not can_fuse(network)
    network = _ltx()
    assert ltx.can_fuse(network)
    network.register_to_config(norm_elementwise_affine=True)
    assert not ltx.can_fuse(network)
    network = _cogvideox()
    assert cogvideox.can_fuse(network)
    network.register_to_config(attention_head_dim=24)
    assert not cogvideox.can_fuse(network)


@pytest.mark.usefixtures("small_trials")
def test_clips_run_fused_once_that_is_proven(model, on_a_gpu, monkeypatch):
    """One clip through the renderer, fused and not, on the same weights."""
    prompt, loaded = Prompt("a red ball"), model("wan2.1")
    request = make_clip_request(loaded, size="16x16", frames=1, steps=2, seed=1)
    renderer = Renderer(loaded, PipelineSettings(device="cpu"))
    expected = renderer.denoise(prompt, request, Control()).latents
    assert not renderer._fused.is_on
    renderer._fused._networks = None  # as on a GPU
    monkeypatch.setattr("filmgate.pipeline.trials.machine_key", lambda _: "a GPU")
    found = renderer.denoise(prompt, request, Control()).latents
    assert renderer._fused.is_on
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert "forward" not in vars(loaded.pipe.transformer)  # a change of settings finds it as it was


def test_a_step_cache_keeps_the_passes_that_it_has_replaced(model):
    denoiser = FusedDenoiser(model("wan2.1"), PipelineSettings(device="cpu"))
    network = build_pipeline("wan2.1").transformer
    denoiser._networks = [FusedWan(network, torch_attention)]
    network.enable_cache(FirstBlockCacheConfig(threshold=0.1))
    assert denoiser.run(lambda: "fused", otherwise=lambda: "cached") == "cached"
    network.disable_cache()
    assert denoiser.run(lambda: "fused", otherwise=lambda: "cached") == "fused"


@pytest.mark.usefixtures("small_trials")
def test_a_wrong_kernel_is_found_before_the_first_clip(model, caplog):
    fused = FusedWan(build_pipeline("wan2.1").transformer.eval(), lambda query, _key, _value: query)
    assert not is_exact([fused])
    assert "failed their self-test" in caplog.text


@pytest.mark.usefixtures("small_trials")
@pytest.mark.parametrize(("fast", "is_used"), [(1, True), (3, False)])
def test_fused_blocks_are_used_where_they_win_the_trial(model, monkeypatch, fast, is_used):
    trials = []
    monkeypatch.setattr(choice, "_run_trial", lambda *_: trials.append(1) or Trial(fast, 2))
    for _ in range(2):  # the second process reads the result of the first
        assert bool(choice._open_proven(model("wan2.1"))) is is_used
    assert len(trials) == 1


def test_a_failure_in_a_clip_ends_the_use_of_the_kernels(model, caplog):
    denoiser = FusedDenoiser(model("wan2.1"), PipelineSettings(device="cpu"))
    network = FusedWan(build_pipeline("wan2.1").transformer, torch_attention)
    denoiser._networks = [network]

    def fails():
        raise RuntimeError("no space left on device")

    assert denoiser.run(fails, otherwise=lambda: "eager") == "eager"
    assert not denoiser.is_on
    assert "the fused kernels failed" in caplog.text
    assert "forward" not in vars(network._network)
