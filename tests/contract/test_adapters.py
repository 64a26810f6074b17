"""LoRA adapters: equal to merged weights, swapped without a compiler, cached by bytes, visible by tenant."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from filmgate.errors import ModelError, OutOfMemory, SettingsError, UnsupportedValue, UsageError
from filmgate.jobs import TenantId
from filmgate.models.adapters import AdapterCard, AdapterRegistry, open_adapters, parse_adapters
from filmgate.models.requests import VideoRequest
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise.acceleration import CompiledBlocks
from filmgate.pipeline.loading import adapters
from filmgate.pipeline.loading.adapter_files import read_adapter
from filmgate.pipeline.loading.adapters import AdapterCache, AdapterSwitch
from filmgate.pipeline.loading.memory import Offload
from filmgate.pipeline.loading.quantization import quantize_blocks, write_weight
from filmgate.pipeline.loading.weight_sums import sum_weights
from filmgate.pipeline.render import Renderer
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request
from tests.loras import save_lora
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
        save_lora(tmp_path / f"{name}.safetensors", wan.pipe.transformer, layers, rank, seed)
    wrong = {f"transformer.{LAYERS[0]}.lora_{side}.weight": torch.randn(5, 5) for side in "AB"}
    save_file(wrong, tmp_path / "wrong.safetensors")
    return tmp_path


def cache_of(folder, max_bytes=1 << 20):
    return AdapterCache(lambda name: [folder / f"{name}.safetensors"], max_bytes)


def latents_of(renderer, model, lora=None):
    request = replace(make_clip_request(model, size="64x64", frames=5, steps=2, seed=3), lora=lora)
    return renderer.denoise(request, Control()).latents


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


def test_a_switch_that_fails_midway_leaves_no_trace_in_the_next_clip(wan, folder, monkeypatch):
    """The next clip has no adapter: it must not render with the layers that were written."""
    before, written = sum_weights(wan.pipe), []

    def run_out(layer, weight):
        if written:
            raise torch.OutOfMemoryError
        written.append(layer)
        write_weight(layer, weight)

    switch = AdapterSwitch(wan, cache_of(folder))
    with monkeypatch.context() as patch:
        patch.setattr(adapters, "write_weight", run_out)
        with pytest.raises(OutOfMemory, match="not enough GPU memory to add the adapter"):
            switch.switch("one")
    assert sum_weights(wan.pipe) != before
    switch.switch(None)
    assert sum_weights(wan.pipe) == before


def test_an_adapter_in_the_original_layout_of_wan_has_its_alpha_and_its_biases(wan, tmp_path):
    """Few-step adapters come in this layout, with changes of biases."""
    layer = wan.pipe.transformer.blocks[0].attn1.to_q
    rows, columns = layer.weight.shape
    down, up, bias = torch.randn(4, columns), torch.randn(rows, 4), torch.randn(rows)
    expected = (layer.weight + 0.5 * (2 / 4) * (up @ down), layer.bias + 0.5 * bias)
    original = "diffusion_model.blocks.0.self_attn.q"
    weights = {
        f"{original}.lora_down.weight": down,
        f"{original}.lora_up.weight": up,
        f"{original}.alpha": torch.tensor(2.0),
        f"{original}.diff_b": bias,
    }
    save_file(weights, tmp_path / "fast.safetensors")
    before, switch = sum_weights(wan.pipe), AdapterSwitch(wan, cache_of(tmp_path))
    switch.switch("fast:0.5")
    torch.testing.assert_close((layer.weight, layer.bias), expected)
    switch.switch(None)
    assert sum_weights(wan.pipe) == before


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"r": 2, "lora_alpha": 8}, 4.0),
        ({"r": 4, "lora_alpha": 8, "use_rslora": True}, 4.0),
        ({"r": 2, "lora_alpha": 8, "alpha_pattern": {"attn1.to_q": 1}}, 0.5),
    ],
)
def test_the_configuration_in_the_header_of_an_adapter_scales_it(wan, tmp_path, config, scale):
    header = {f"transformer.{key}": value for key, value in config.items()}
    metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(header)}
    file = tmp_path / "scaled.safetensors"
    save_lora(file, wan.pipe.transformer, LAYERS[:1], rank=config["r"], metadata=metadata)
    assert read_adapter([file], wan).factors[f"transformer.{LAYERS[0]}"].scale == scale


def test_each_expert_gets_its_own_file(model, tmp_path):
    pipe = build_pipeline("wan2.2-two-experts")
    wan = replace(model("wan2.2-two-experts"), pipe=pipe)
    before = [deepcopy(each.state_dict()) for each in (pipe.transformer, pipe.transformer_2)]
    files = [tmp_path / "high.safetensors", tmp_path / "low.safetensors"]
    factors = [save_lora(file, pipe.transformer, LAYERS, seed=n) for n, file in enumerate(files)]
    AdapterSwitch(wan, AdapterCache(lambda _: files, 1 << 20)).switch("lightning")
    for expert, known, own in zip((pipe.transformer, pipe.transformer_2), before, factors, strict=True):
        for layer in LAYERS:
            up, down = (own[f"transformer.{layer}.lora_{side}.weight"] for side in "BA")
            expected = known[f"{layer}.weight"] + up @ down
            torch.testing.assert_close(expert.get_submodule(layer).weight.data, expected)
    with pytest.raises(ModelError, match="has 2 files, but .* reads at most 1"):
        read_adapter(files, model("wan2.1"))
    with pytest.raises(ModelError, match="has 3 files, but .* reads at most 2, one for each denoiser"):
        read_adapter([*files, files[0]], wan)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "transformer.blocks.0.attn1.to_q.alpha",
            "has weights that Filmgate cannot use, such as transformer",
        ),
        ("transformer.blocks.0.attn1.to_q.dora_scale", "is a DoRA"),
        ("transformer.blocks.0.attn1.to_k.lora_A.weight", "has no pairs"),
        ("transformer.blocks.0.attn1.to_q.lora_B.bias", "does not fit"),
        ("text_encoder.block.0.lora_B.bias", "text_encoder, which is not a denoiser"),
    ],
)
def test_weights_that_would_be_ignored_are_an_error(wan, tmp_path, key, message):
    file = tmp_path / "odd.safetensors"
    weights = save_lora(file, wan.pipe.transformer, LAYERS[:1])
    save_file({**weights, key: torch.ones(3, 3)}, file)
    with pytest.raises(ModelError, match=message):
        read_adapter([file], wan)


def test_weights_that_diffusers_ignores_are_logged(wan, tmp_path, caplog):
    file = tmp_path / "norms.safetensors"
    q = "diffusion_model.blocks.0.self_attn.q.lora"
    rows, columns = wan.pipe.transformer.blocks[0].attn1.to_q.weight.shape
    pair = {f"{q}_A.weight": torch.ones(1, columns), f"{q}_B.weight": torch.ones(rows, 1)}
    for change, is_logged in [(torch.zeros(3), False), (torch.ones(3), True)]:
        caplog.clear()
        save_file({**pair, "diffusion_model.blocks.0.norm3.diff": change}, file)
        read_adapter([file], wan)
        assert ("diffusers ignores 1 weights" in caplog.text) is is_logged


def test_adapters_are_swapped_without_compiling_again(wan, folder):
    graphs = []

    def backend(module, _inputs):
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    renderer = Renderer(wan, CPU.model_copy(update={"compile": "on"}), adapters=cache_of(folder))
    renderer._denoiser.compiled = CompiledBlocks([wan.pipe.transformer], backend=backend)
    counts = []
    for lora in (None, "one", "one,two:0.5", None):
        latents_of(renderer, wan, lora)
        counts.append(len(graphs))
    renderer._denoiser.compiled.switch_off()
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
    file.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="cannot be read"):
        open_adapters(str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[a]\nmodel = "wan"\n', "a.location is missing"),
        ("colour = 1\n", "a.colour: is not a known key"),
        ('steps = "four"\n', "a.steps"),
        ("steps = 0\n", "a.steps"),
        ("scale = 9.0\n", "a.scale"),
        ("scale = nan\n", "a.scale"),
        ("guidance = -1\n", "a.guidance"),
        ("tenant = 3\n", "a.tenant"),
        ("a = [3]\n", "a: must be an object"),
        ("[a", "end of a table"),
        ('["a+b"]\nmodel = "wan"\nlocation = "/a"\n', "the name a\\+b"),
    ],
)
def test_a_wrong_field_in_the_file_of_adapters_is_named_at_start(tmp_path, text, message):
    """Not at the first request: a job would fail on a worker, or the API would report an internal error."""
    file = tmp_path / "adapters.toml"
    file.write_text(text if "[" in text else f'[a]\nmodel = "wan"\nlocation = "/a"\n{text}')
    with pytest.raises(SettingsError, match=message) as refused:
        open_adapters(str(file))
    assert refused.value.option == "models.adapters_file"
