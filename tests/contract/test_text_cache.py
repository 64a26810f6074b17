"""Cached embeddings: what is found is what was kept, within bounds, and a clip cannot tell the difference."""

from dataclasses import replace

import pytest
import torch

from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text.cache import TextCache, digest
from filmgate.pipeline.text.encode import Prompt, encode_text
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request

CPU = PipelineSettings(device="cpu")
EMBEDDING_BYTES = 4 * 8


def embedding(value: float = 0.0) -> dict[str, torch.Tensor]:
    return {"prompt_embeds": torch.full((1, 8), value)}


def test_what_is_found_is_what_was_kept():
    cache = TextCache(1000)
    cache.keep("a", embedding(3.0))
    assert torch.equal(cache.find("a")["prompt_embeds"], torch.full((1, 8), 3.0))
    assert cache.find("b") is None


def test_a_later_change_to_the_original_does_not_reach_the_cache():
    cache, original = TextCache(1000), embedding(1.0)
    cache.keep("a", original)
    original["prompt_embeds"].fill_(9.0)
    assert cache.find("a")["prompt_embeds"].max() == 1.0


def test_the_least_recently_used_leaves_when_bytes_run_out():
    cache = TextCache(2 * EMBEDDING_BYTES)
    cache.keep("a", embedding())
    cache.keep("b", embedding())
    cache.find("a")
    cache.keep("c", embedding())
    assert [key for key in "abc" if cache.find(key)] == ["a", "c"]
    assert cache.held_bytes == 2 * EMBEDDING_BYTES


def test_the_number_of_entries_is_bounded_too():
    cache = TextCache(10**9, max_entries=3)
    for n in range(5):
        cache.keep(str(n), embedding())
    assert len(cache) == 3
    assert cache.held_bytes == 3 * EMBEDDING_BYTES


def test_what_never_fits_is_not_kept_and_drives_nothing_out():
    cache = TextCache(EMBEDDING_BYTES)
    cache.keep("a", embedding())
    cache.keep("b", {"prompt_embeds": torch.zeros(1, 9)})
    assert (cache.find("b"), len(cache)) == (None, 1)


def test_keeping_twice_counts_once():
    cache = TextCache(1000)
    cache.keep("a", embedding(1.0))
    cache.keep("a", embedding(2.0))
    assert (len(cache), cache.held_bytes) == (1, EMBEDDING_BYTES)


def test_no_bytes_is_no_cache():
    cache = TextCache(0)
    cache.keep("a", embedding())
    assert len(cache) == 0


ASKED = {"prompt": "a cat", "negative_prompt": "", "max_sequence_length": 512}


@pytest.mark.parametrize(
    ("scope", "asked"),
    [
        ("", ASKED | {"prompt": "a cat "}),
        ("", ASKED | {"negative_prompt": "blur"}),
        ("", ASKED | {"prompt": "", "negative_prompt": "a cat"}),
        ("", ASKED | {"max_sequence_length": 226}),
        ("", ASKED | {"do_classifier_free_guidance": True}),
        ("", ASKED | {"prompt": "a cat', max_sequence_length=512"}),
        ("acme", ASKED),
    ],
)
def test_anything_that_decides_an_embedding_changes_its_key(scope, asked):
    assert digest(scope, asked) != digest("", ASKED)


def test_a_key_says_nothing_of_the_prompt_and_does_not_depend_on_order():
    key = digest("acme", ASKED)
    assert len(key) == 64
    assert int(key, 16) >= 0
    assert key == digest("acme", dict(reversed(ASKED.items())))


def test_a_scope_cannot_be_confused_with_an_argument():
    assert digest("a=1", {}) != digest("", {"a": 1})


@pytest.mark.parametrize("name", ["wan2.1", "ltx", "cogvideox", "hunyuanvideo"])
def test_the_second_asking_is_cached_and_bit_for_bit_the_first(model, name):
    cache, prompt = TextCache(1 << 30), Prompt("a red ball", "blur", guidance=5.0)
    fresh, found = (encode_text(model(name), prompt, cache) for _ in range(2))
    assert (fresh.is_cached, found.is_cached) == (False, True)
    assert fresh.arguments.keys() == found.arguments.keys()
    for key, tensor in fresh.arguments.items():
        assert torch.equal(tensor, found.arguments[key])
        assert tensor.data_ptr() != found.arguments[key].data_ptr()


def test_guidance_matters_only_by_being_there(model):
    cache, prompt = TextCache(1 << 30), Prompt("a red ball", guidance=5.0)
    encode_text(model("wan2.1"), prompt, cache)
    assert encode_text(model("wan2.1"), replace(prompt, guidance=7.0), cache).is_cached
    assert not encode_text(model("wan2.1"), replace(prompt, guidance=1.0), cache).is_cached


def test_one_tenants_prompt_is_never_answered_from_anothers(model):
    cache, prompt = TextCache(1 << 30), Prompt("a red ball", scope="acme")
    encode_text(model("wan2.1"), prompt, cache)
    assert not encode_text(model("wan2.1"), replace(prompt, scope="globex"), cache).is_cached


def test_a_family_without_text_leaves_the_cache_alone(model):
    cache = TextCache(1 << 30)
    assert not encode_text(model("svd"), Prompt("a red ball"), cache).is_cached
    assert len(cache) == 0


@pytest.mark.parametrize("name", ["wan2.1", "ltx", "cogvideox"])
def test_latents_are_the_same_with_and_without_the_cache(model, name):
    loaded = model(name)
    request = make_clip_request(loaded, size="64x64", frames=9, steps=2, seed=3, guidance=5.0)
    asked = Prompt("a red ball", "blur", request.guidance)
    with_cache = Renderer(loaded, CPU)
    without = Renderer(loaded, CPU.model_copy(update={"text_cache_bytes": 0}))
    first, second = (with_cache.denoise(asked, request, Control()).latents for _ in range(2))
    uncached = [without.denoise(asked, request, Control()).latents for _ in range(2)]
    assert with_cache._is_text_cached
    assert not without._is_text_cached
    assert torch.equal(first, second)
    assert all(torch.equal(first, latents) for latents in uncached)


def test_no_prompt_is_held_by_a_renderer_that_cached_it(model):
    loaded = model("wan2.1")
    renderer = Renderer(loaded, CPU)
    request = make_clip_request(loaded, size="64x64", frames=5, steps=1, seed=3)
    renderer.denoise(Prompt("a zebrafish"), request, Control())
    ((key, kept),) = renderer._texts._entries.items()
    assert "zebrafish" not in key
    assert all(isinstance(value, torch.Tensor) for value in kept.values())


def test_a_report_says_whether_the_text_was_cached_and_a_checkpoint_inherits_nothing(model):
    loaded = model("wan2.1")
    renderer = Renderer(loaded, CPU)
    request = make_clip_request(loaded, size="64x64", frames=5, steps=1, seed=3)

    def render():
        return renderer.render(Prompt("a cat"), request, None, ClipOutputs(), Control())

    assert [render().is_text_cached for _ in range(2)] == [False, True]
    latents = renderer.denoise(Prompt("a cat"), request, Control())
    renderer.finish(latents, request, None, ClipOutputs(), Control())
    resumed = renderer.finish(latents, request, None, ClipOutputs(), Control())
    assert (resumed.is_text_cached, set(resumed.stage_seconds)) == (False, {"decode"})
