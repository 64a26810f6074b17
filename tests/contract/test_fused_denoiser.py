"""The fused denoiser: its passes equal those of diffusers, and share what they can.

Its kernels run in Triton's interpreter (see tests/conftest.py).
"""

import diffusers
import pytest
import torch

from filmgate.pipeline.denoise.attention import torch_attention
from filmgate.pipeline.denoise.fused import cogvideox, ltx
from filmgate.pipeline.denoise.fused.cogvideox import FusedCogVideoX
from filmgate.pipeline.denoise.fused.ltx import FusedLtx
from filmgate.pipeline.denoise.fused.network import Memoized
from filmgate.pipeline.denoise.fused.wan import FusedWan, can_fuse
from tests.zoo import build_pipeline

SHAPE = (1, 4, 4)


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
    for inputs in examples:  # one timestep for the clip, then, if the model has that, one for each token
        with torch.inference_mode():
            expected = fused.run(inputs)
            fused.switch_on()
            found = [fused.run(inputs) for _ in range(2)]  # the second reads what the first kept
            fused.switch_off()
            assert torch.equal(fused.run(inputs), expected)
        for one in found:
            torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["wan2.1", "ltx", "cogvideox-2b"])
def test_a_clip_with_an_adapter_after_one_without_has_the_weights_of_the_adapter(name):
    """Adapters are added to the weights in place, so nothing computed from weights outlives a clip."""
    fused, (inputs, *_) = open_network(name)
    without = run_fused(fused, inputs)
    with torch.no_grad():
        for layer in (one for one in fused._network.modules() if isinstance(one, torch.nn.Linear)):
            layer.weight.add_(torch.randn(layer.weight.shape), alpha=0.05)
        expected = fused.run(inputs)
    found = run_fused(fused, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - without).norm() > 0.01 * without.norm()


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
    counts = dict.fromkeys(("time", "start", "text", "keys", "attention"), 0)

    def attend(*given):
        counts["attention"] += 1
        return torch_attention(*given)

    fused = FusedWan(network, attend)

    def count(name, compute):
        def counted(*arguments):
            counts[name] += 1
            return compute(*arguments)

        return counted

    kept = {
        "time": fused._time,
        "start": fused._start,
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
    # In a step of two passes, the first of two blocks attends to the clip once.
    assert counts == {"time": 3, "start": 3, "text": 2, "keys": 2, "attention": 3 * (1 + 2)}


def test_remembered_results_belong_to_the_same_objects_and_end_with_the_clip():
    calls = []
    kept = Memoized(lambda one: calls.append(one) or len(calls), count=2)
    first, second, third = (torch.zeros(1) for _ in range(3))  # equal, but not the same
    assert [kept(first), kept(second), kept(first), kept(third), kept(first)] == [1, 2, 1, 3, 4]
    assert [kept(600), kept(int("600"))] == [5, 5]
    kept.clear()
    assert kept(third) == 6


def test_a_large_result_is_kept_for_the_second_pass_of_a_step_only():
    calls = []
    kept = Memoized(lambda one: calls.append(one) or len(calls), is_for_pair=True)
    latents = torch.zeros(1)
    assert [kept(latents), kept(latents), kept(latents)] == [1, 1, 2]


def test_what_was_kept_of_a_clip_is_overwritten_when_it_ends():
    kept = Memoized(lambda text: [(text + 1, text + 2)])
    ((key, value),) = kept(torch.zeros(3))
    kept.clear()
    assert not torch.cat([key, value]).any()


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
