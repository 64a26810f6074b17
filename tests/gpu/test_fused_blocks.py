"""Fused blocks of every family on a real GPU, at the width of the released models and with few blocks."""

from dataclasses import replace

import pytest
import torch

from benchmarks.denoise_variants import relative_norm
from benchmarks.denoisers import DENOISERS, build_denoiser, draw_inputs
from filmgate.pipeline.denoise.acceleration import MAX_ERROR, TEST_LATENTS, largest_error
from filmgate.pipeline.denoise.attention import (
    choose_attention,
    flash_at_once,
    flash_attention,
    flash_in_two,
    is_flash_installed,
    torch_attention,
)

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

GPU, BLOCKS = torch.device("cuda"), 4
CASES = {"wan2.1-1.3b": ((480, 272), 17), "ltx-2b": ((512, 320), 25), "cogvideox-5b": ((480, 272), 17)}


def build(name, monkeypatch, dtype=torch.bfloat16):
    """The released denoiser with fewer blocks."""
    recipe = DENOISERS[name]
    few = replace(recipe, transformer=recipe.transformer | {"num_layers": BLOCKS})
    monkeypatch.setitem(DENOISERS, name, few)
    return few.family, build_denoiser(name, GPU, dtype)


def run(network, inputs):
    given = {"hidden_states": inputs.latents, "timestep": inputs.timestep}
    text = {"encoder_hidden_states": inputs.text}
    return network(**given, **text, **inputs.others, return_dict=False)[0].float()


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_fused_blocks_are_no_further_from_float32_than_eager(name, monkeypatch):
    family, network = build(name, monkeypatch)
    inputs = draw_inputs(name, *CASES[name], (GPU, torch.bfloat16)).doubled()  # a guided step as one batch
    eager, found = run(network, inputs), []
    for attention in (torch_attention, choose_attention(network)):
        fused = family.fuse(network, attention)
        fused.switch_on()
        found += [run(network, inputs) for _ in range(2)]  # the second with what the first kept
        fused.switch_off()
    assert torch.equal(run(network, inputs), eager)
    reference = run(network.float(), inputs.to_dtype(torch.float32))
    # Over 30 blocks a fused pass is closer than an eager one; over four, the seed may decide.
    assert max(relative_norm(one, reference) for one in found) <= 1.05 * relative_norm(eager, reference)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_fused_blocks_pass_the_self_test_of_the_first_clip(name, dtype, monkeypatch):
    family, network = build(name, monkeypatch, dtype)
    fused = family.fuse(network, choose_attention(network))
    assert fused.examples(TEST_LATENTS)
    assert largest_error([fused]) <= MAX_ERROR


@pytest.mark.skipif(not is_flash_installed(), reason="needs flash-attn-4")
@pytest.mark.parametrize("tokens", [8192, 32_760])
@torch.inference_mode()
def test_two_sizes_of_tiles_give_the_same_attention_bit_for_bit(tokens):
    query, key, value = (torch.randn(1, tokens, 12, 128, device=GPU, dtype=torch.bfloat16) for _ in range(3))
    whole = flash_at_once(query, key, value)
    assert torch.equal(flash_in_two(query, key, value, 40 * 192), whole)
    assert torch.equal(flash_attention(query, key, value), whole)
    assert relative_norm(whole, torch_attention(query, key, value)) < 0.01
