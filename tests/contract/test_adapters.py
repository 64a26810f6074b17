"""LoRA adapters: equal to merged weights, swapped without a compiler, cached by bytes, visible by tenant."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from filmgate.errors import ModelError, SettingsError, UnsupportedValue, UsageError
from filmgate.jobs import TenantId
from filmgate.models.adapters import AdapterCard, AdapterRegistry, open_adapters, parse_adapters
from filmgate.models.requests import VideoRequest
from filmgate.pipeline.control import Control
from filmgate.pipeline.loading.adapters import AdapterCache, AdapterSwitch
from filmgate.pipeline.loading.compilation import BlockCompiler
from filmgate.pipeline.loading.memory import Offload
from filmgate.pipeline.loading.quantization import quantize_blocks
from filmgate.pipeline.loading.weight_sums import sum_weights
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text.encode import Prompt
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request
from tests.zoo import build_pipeline

CPU = PipelineSettings(device="cpu")
LAYERS = ("blocks.0.attn1.to_q", "blocks.1.attn2.to_v", "blocks.1.ffn.net.2")
ACME, GLOBEX = TenantId("acme"), TenantId("globex")


@pytest.fixture
def wan(model):
    """A tiny Wan with its own weights: adapters change them."""
    loaded = model("wan2.1")
    return replace(loaded, pipe=build_pipeline("wan2.1"))


@pytest.fixture
def folder(tmp_path, wan):
    """Two adapters of different rank on overlapping layers, and one for another model."""
    for seed, (name, layers, rank) in enumerate([("one", LAYERS[:2], 2), ("two", LAYERS[1:], 3)]):
        generator = torch.Generator().manual_seed(seed)
        weights = {}
        for layer in layers:
            rows, columns = wan.pipe.transformer.get_submodule(layer).weight.shape
            weights[f"transformer.{layer}.lora_A.weight"] = torch.randn(rank, columns, generator=generator)
            weights[f"transformer.{layer}.lora_B.weight"] = torch.randn(rows, rank, generator=generator)
        save_file(weights, tmp_path / f"{name}.safetensors")
    wrong = {f"transformer.{LAYERS[0]}.lora_{side}.weight": torch.randn(5, 5) for side in "AB"}
    save_file(wrong, tmp_path / "wrong.safetensors")
    return tmp_path


def cache_of(folder, max_bytes=1 << 20):
    return AdapterCache(lambda name: folder / f"{name}.safetensors", max_bytes)


def latents_of(renderer, model, lora=None):
    request = replace(make_clip_request(model, size="64x64", frames=5, steps=2, seed=3), lora=lora)
    return renderer.denoise(Prompt("a cat"), request, Control()).latents


def merged(wan, folder, scales):
    """The model with the adapters merged into its weights by hand."""
    pipe = deepcopy(wan.pipe)
    for layer in LAYERS:
        weight = pipe.transformer.get_submodule(layer).weight
        total = weight.data.clone()
        for name, scale in scales.items():
            factors = load_file(folder / f"{name}.safetensors")
            if f"transformer.{layer}.lora_A.weight" in factors:
                up, down = (factors[f"transformer.{layer}.lora_{side}.weight"] for side in "BA")
                total += scale * (up @ down)
        weight.data = total
    return replace(wan, pipe=pipe)


@pytest.mark.parametrize("weights", ["int8", "fp8"])
def test_an_adapter_on_quantised_weights_is_within_their_error_and_leaves_no_trace(wan, folder, weights):
    expected = merged(wan, folder, {"one": 0.5})
    quantize_blocks([wan.pipe.transformer], weights, torch.device("cpu"))
    before = sum_weights(wan.pipe)
    switch = AdapterSwitch(wan, cache_of(folder))
    switch.switch("one:0.5")
    for layer in LAYERS:
        right = expected.pipe.transformer.get_submodule(layer).weight
        assert (
            torch.dist(wan.pipe.transformer.get_submodule(layer).read_weight(), right) < 0.05 * right.norm()
        )
    assert sum_weights(wan.pipe) != before
    switch.switch(None)
    assert sum_weights(wan.pipe) == before


def test_two_adapters_equal_the_merged_weights_and_leave_no_trace(wan, folder):
    renderer = Renderer(wan, CPU, adapters=cache_of(folder))
    plain, base = latents_of(renderer, wan), replace(wan, pipe=deepcopy(wan.pipe))
    for lora, scales in [
        ("one:0.5", {"one": 0.5}),
        ("one:0.5,two:-1.5", {"one": 0.5, "two": -1.5}),
        ("two", {"two": 1.0}),
    ]:
        expected = latents_of(Renderer(merged(base, folder, scales), CPU), wan)
        found = latents_of(renderer, wan, lora)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert not torch.allclose(found, plain, atol=1e-3)
    assert torch.equal(latents_of(renderer, wan), plain)


def test_adapters_are_swapped_without_compiling_again(wan, folder):
    graphs = []

    def backend(module, _inputs):
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    renderer = Renderer(wan, CPU.model_copy(update={"compile": "on"}), adapters=cache_of(folder))
    renderer._compiler = BlockCompiler([wan.pipe.transformer], backend=backend)
    counts = []
    for lora in (None, "one", "one,two:0.5", None):
        latents_of(renderer, wan, lora)
        counts.append(len(graphs))
    renderer._compiler.switch_off()
    assert counts[0] > 0
    assert counts == [counts[0]] * 4


def test_adapters_are_cached_by_bytes_least_recently_used_first(wan, folder):
    cache = cache_of(folder)
    one, two = cache.get("one", wan), cache.get("two", wan)
    assert cache.get("one", wan) is one
    assert cache.size_bytes == one.size_bytes + two.size_bytes
    small = cache_of(folder, max_bytes=two.size_bytes)
    first = small.get("one", wan)
    small.get("two", wan)
    assert small.size_bytes == two.size_bytes
    assert small.get("one", wan) is not first


def test_an_adapter_that_does_not_fit_is_refused_and_changes_nothing(wan, folder):
    renderer = Renderer(wan, CPU, adapters=cache_of(folder))
    plain = latents_of(renderer, wan)
    with pytest.raises(ModelError, match="does not fit"):
        latents_of(renderer, wan, "one,wrong")
    assert torch.equal(latents_of(renderer, wan), plain)
    with pytest.raises(ModelError, match="exactly one"):
        latents_of(renderer, wan, "missing")
    layers = replace(wan, placement=replace(wan.placement, offload=Offload.LAYERS))
    with pytest.raises(UsageError, match=r"pipeline\.offload"):
        AdapterSwitch(layers, cache_of(folder)).switch("one")
    with pytest.raises(UsageError, match=r"models\.adapters_file"):
        latents_of(Renderer(wan, CPU), wan, "one")


@pytest.fixture
def registry():
    cards = (
        AdapterCard("lightning", "wan", "/adapters/lightning", steps=4, guidance=1.0),
        AdapterCard("style", "wan", "/adapters/style", scale=0.8),
        AdapterCard("brand", "wan", "s3://bucket/adapters/brand/v1/", tenant="acme"),
    )
    return AdapterRegistry({card.name: card for card in cards})


def test_a_request_names_adapters_in_a_field_or_behind_its_model(registry):
    by_model = registry.resolve(VideoRequest("a cat", model="wan+lightning"), ACME)
    by_field = registry.resolve(VideoRequest("a cat", model="wan", lora="lightning"), ACME)
    assert by_model == by_field
    assert (by_model.model, by_model.lora) == ("wan", "lightning:1")
    assert (by_model.steps, by_model.guidance) == (4, 1.0)
    both = registry.resolve(VideoRequest("a cat", model="wan+lightning", lora="style", steps=6), ACME)
    assert (both.lora, both.steps) == ("lightning:1,style:0.8", 6)
    assert registry.resolve(by_model, ACME) == by_model, "a remix resolves again"
    plain = VideoRequest("a cat", model="wan")
    assert registry.resolve(plain, ACME) is plain


def test_a_tenants_own_adapter_does_not_exist_for_others(registry):
    assert [card.name for card in registry.visible(ACME)] == ["lightning", "style", "brand"]
    assert registry.resolve(VideoRequest("a cat", model="wan+brand"), ACME).lora == "brand:1"
    messages = []
    for name in ("brand", "nobody"):
        with pytest.raises(UnsupportedValue) as refused:
            registry.resolve(VideoRequest("a cat", model="wan", lora=name), GLOBEX)
        messages.append(str(refused.value).replace(name, "NAME"))
    assert messages[0] == messages[1]
    assert "brand" not in messages[0]


@pytest.mark.parametrize("text", ["style:much", "style:9", "style,style", "a,b,c,d,e"])
def test_adapters_that_cannot_be_used_are_refused(text):
    with pytest.raises(UnsupportedValue) as refused:
        parse_adapters(text)
    assert refused.value.option == "lora"


def test_an_adapter_of_another_model_is_refused(registry):
    with pytest.raises(UnsupportedValue, match="belongs to wan"):
        registry.resolve(VideoRequest("a cat", model="ltx", lora="style"), ACME)


def test_the_file_of_adapters_is_checked_at_start(tmp_path):
    file = tmp_path / "adapters.toml"
    file.write_text('[lightning]\nmodel = "wan"\nlocation = "/a"\nsteps = 4\n')
    assert open_adapters(str(file)).find("lightning").steps == 4
    assert open_adapters("").visible(ACME) == ()
    fields = 'model = "wan"\nlocation = "/a"\n'
    for text in ('[a]\nmodel = "wan"\n', f"[a]\n{fields}colour = 1\n", "[a", f'["a+b"]\n{fields}'):
        file.write_text(text)
        with pytest.raises(SettingsError):
            open_adapters(str(file))
