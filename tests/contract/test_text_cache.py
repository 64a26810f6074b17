"""Cached embeddings: exact, bounded, separate for each tenant, and without effect on the clip."""

from dataclasses import replace

import pytest
import torch

from filmgate.pipeline.canary import canary_request
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise.denoise import pack_latents, unpack_latents
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text import TextCache, cache_key, encode_text
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request

CPU = PipelineSettings(device="cpu")
EMBEDDING_BYTES = 4 * 8


def embedding(value: float = 0.0) -> dict[str, torch.Tensor]:
    return {"prompt_embeds": torch.full((1, 8), value)}


def test_get_returns_what_was_put():
    cache = TextCache(1000)
    cache.put("a", embedding(3.0))
    assert torch.equal(cache.get("a")["prompt_embeds"], torch.full((1, 8), 3.0))
    assert cache.get("b") is None


def test_the_cache_stores_a_copy():
    cache, original = TextCache(1000), embedding(1.0)
    cache.put("a", original)
    original["prompt_embeds"].fill_(9.0)
    assert cache.get("a")["prompt_embeds"].max() == 1.0


def test_the_least_recently_used_entry_is_evicted_first():
    cache = TextCache(2 * EMBEDDING_BYTES)
    cache.put("a", embedding())
    cache.put("b", embedding())
    cache.get("a")
    cache.put("c", embedding())
    assert [key for key in "abc" if cache.get(key)] == ["a", "c"]
    assert cache.size_bytes == 2 * EMBEDDING_BYTES


def test_the_number_of_entries_is_bounded():
    cache = TextCache(10**9, max_entries=3)
    for n in range(5):
        cache.put(str(n), embedding())
    assert len(cache) == 3
    assert cache.size_bytes == 3 * EMBEDDING_BYTES


def test_an_entry_above_the_limit_is_not_stored_and_evicts_nothing():
    cache = TextCache(EMBEDDING_BYTES)
    cache.put("a", embedding())
    cache.put("b", {"prompt_embeds": torch.zeros(1, 9)})
    assert (cache.get("b"), len(cache)) == (None, 1)


def test_putting_the_same_key_twice_counts_once():
    cache = TextCache(1000)
    cache.put("a", embedding(1.0))
    cache.put("a", embedding(2.0))
    assert (len(cache), cache.size_bytes) == (1, EMBEDDING_BYTES)


def test_a_limit_of_zero_disables_the_cache():
    cache = TextCache(0)
    cache.put("a", embedding())
    assert len(cache) == 0


ARGUMENTS = {"prompt": "a cat", "negative_prompt": "", "max_sequence_length": 512}


@pytest.mark.parametrize(
    ("scope", "arguments"),
    [
        ("", ARGUMENTS | {"prompt": "a cat "}),
        ("", ARGUMENTS | {"negative_prompt": "blur"}),
        ("", ARGUMENTS | {"prompt": "", "negative_prompt": "a cat"}),
        ("", ARGUMENTS | {"max_sequence_length": 226}),
        ("", ARGUMENTS | {"do_classifier_free_guidance": True}),
        ("", ARGUMENTS | {"prompt": "a cat', max_sequence_length=512"}),
        ("acme", ARGUMENTS),
    ],
)
def test_every_input_of_the_encoder_changes_the_key(scope, arguments):
    assert cache_key(scope, arguments) != cache_key("", ARGUMENTS)


def test_a_key_is_a_digest_and_does_not_depend_on_argument_order():
    key = cache_key("acme", ARGUMENTS)
    assert len(key) == 64
    assert int(key, 16) >= 0
    assert key == cache_key("acme", dict(reversed(ARGUMENTS.items())))


def test_a_scope_cannot_be_confused_with_an_argument():
    assert cache_key("a=1", {}) != cache_key("", {"a": 1})


def request_of(model, frames=9, steps=1, **fields):
    return make_clip_request(model, size="64x64", frames=frames, steps=steps, seed=3, **fields)


@pytest.mark.parametrize("name", ["wan2.1", "ltx", "cogvideox", "hunyuanvideo"])
def test_a_repeated_prompt_is_cached_and_bit_for_bit_equal(model, name):
    cache, request = TextCache(1 << 30), request_of(model(name), negative_prompt="blur", guidance=5.0)
    fresh, cached = (encode_text(model(name), request, cache) for _ in range(2))
    assert (fresh.is_cached, cached.is_cached) == (False, True)
    assert fresh.arguments.keys() == cached.arguments.keys()
    for key, tensor in fresh.arguments.items():
        assert torch.equal(tensor, cached.arguments[key])
        assert tensor.data_ptr() != cached.arguments[key].data_ptr()


def test_only_the_presence_of_guidance_changes_the_key(model):
    cache, request = TextCache(1 << 30), request_of(model("wan2.1"), guidance=5.0)
    encode_text(model("wan2.1"), request, cache)
    assert encode_text(model("wan2.1"), replace(request, guidance=7.0), cache).is_cached
    assert not encode_text(model("wan2.1"), replace(request, guidance=1.0), cache).is_cached


def test_tenants_do_not_share_cached_prompts(model):
    cache, request = TextCache(1 << 30), replace(request_of(model("wan2.1")), owner="acme")
    encode_text(model("wan2.1"), request, cache)
    assert not encode_text(model("wan2.1"), replace(request, owner="globex"), cache).is_cached


def test_a_family_without_text_does_not_use_the_cache(model):
    cache = TextCache(1 << 30)
    assert not encode_text(model("svd"), canary_request(model("svd")), cache).is_cached
    assert len(cache) == 0


@pytest.mark.parametrize("name", ["wan2.1", "ltx", "cogvideox"])
def test_latents_are_the_same_with_and_without_the_cache(model, name):
    loaded = model(name)
    request = request_of(loaded, steps=2, negative_prompt="blur", guidance=5.0)
    with_cache = Renderer(loaded, CPU)
    without = Renderer(loaded, CPU.model_copy(update={"text_cache_bytes": 0}))
    first, second = (with_cache.denoise(request, Control()) for _ in range(2))
    uncached = [without.denoise(request, Control()) for _ in range(2)]
    assert [clip.is_text_cached for clip in (first, second, *uncached)] == [False, True, False, False]
    assert all(torch.equal(first.latents, clip.latents) for clip in (second, *uncached))


def test_the_cache_holds_no_prompt(model):
    loaded = model("wan2.1")
    renderer = Renderer(loaded, CPU)
    request = request_of(loaded, prompt="a zebrafish")
    renderer.denoise(request, Control())
    ((key, kept),) = renderer._texts._entries.items()
    assert "zebrafish" not in key
    assert all(isinstance(value, torch.Tensor) for value in kept.values())


def test_the_report_of_a_resumed_clip_has_nothing_of_the_stages_it_skipped(model):
    loaded = model("wan2.1")
    renderer = Renderer(loaded, CPU)
    request = request_of(loaded)

    def render():
        return renderer.render(request, None, ClipOutputs(), Control())

    assert [render().is_text_cached for _ in range(2)] == [False, True]
    checkpoint = pack_latents(renderer.denoise(request, Control()))
    denoised = unpack_latents(checkpoint, loaded.placement.device)
    resumed = renderer.finish(denoised, request, None, ClipOutputs(), Control())
    assert (resumed.is_text_cached, set(resumed.stage_seconds)) == (False, {"decode"})
