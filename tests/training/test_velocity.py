"""The training forward pass, on tokens with folded padding, matches the stock pipeline."""

import pytest
import torch
from diffusers import WanPipeline
from training.flipbook.export import build_scheduler
from training.flipbook.networks import PATCH, TINY, build_text_encoder, build_transformer, build_vae
from training.flipbook.tokenizer import build_tokenizer, tokenize
from training.flipbook.velocity import (
    TEXT_LENGTH,
    encode_prompts,
    rotary_tables,
    run_transformer,
    to_tokens,
)

PROMPTS = ["a red ball bounces on the grass", "", "zog the unknown"]


def from_tokens(tokens, channels, grid):
    """The inverse of `to_tokens`; grid: latent frames, height, width."""
    t, h, w = grid
    x = tokens.view(-1, t, h // PATCH, w // PATCH, channels, PATCH, PATCH)
    return x.permute(0, 4, 1, 2, 5, 3, 6).reshape(-1, channels, t, h, w)


@pytest.fixture(scope="module")
def pipeline():
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    transformer = build_transformer(TINY).eval().requires_grad_(False)
    for weight in transformer.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.1)
    text_encoder = build_text_encoder(TINY, len(tokenizer)).eval().requires_grad_(False)
    return WanPipeline(tokenizer, text_encoder, build_vae(TINY), build_scheduler(), transformer)


@pytest.fixture(scope="module")
def prompt(pipeline):
    return encode_prompts(pipeline.text_encoder, *tokenize(pipeline.tokenizer, PROMPTS, TEXT_LENGTH))


def test_short_text_is_encoded_as_in_the_pipeline(pipeline, prompt):
    stock, _ = pipeline.encode_prompt(PROMPTS, do_classifier_free_guidance=False, max_sequence_length=512)
    torch.testing.assert_close(prompt.embeddings, stock[:, :TEXT_LENGTH], atol=1e-5, rtol=1e-4)
    assert stock[:, TEXT_LENGTH:].abs().max() == 0


@pytest.mark.parametrize("grid", [(3, 4, 4), (2, 4, 6), (1, 6, 2)])
def test_velocity_matches_the_stock_transformer(pipeline, prompt, grid):
    latents = torch.randn(3, TINY.latent_channels, *grid)
    time = torch.tensor([0.0, 421.5, 999.0])
    embeddings, _ = pipeline.encode_prompt(
        PROMPTS, do_classifier_free_guidance=False, max_sequence_length=512
    )
    stock = pipeline.transformer(latents, time, embeddings).sample
    rotary = rotary_tables(pipeline.transformer, grid)
    ours = run_transformer(
        pipeline.transformer, to_tokens(latents), time, prompt.embeddings, prompt.bias, rotary
    )
    assert stock.std() > 0.1
    torch.testing.assert_close(from_tokens(ours, TINY.latent_channels, grid), stock, atol=2e-5, rtol=1e-4)


def test_from_tokens_inverts_to_tokens():
    latents = torch.randn(2, 8, 3, 4, 6)
    assert torch.equal(from_tokens(to_tokens(latents), 8, (3, 4, 6)), latents)
