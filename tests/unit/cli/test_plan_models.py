"""Names of models: hub ids from the local cache, and names that no model has."""

import json
from dataclasses import replace

import pytest

from filmgate.catalog.loader import load_catalog
from filmgate.cli.plan.inputs import find_llm, find_video_model, is_video
from filmgate.errors import UsageError

CONFIG = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 24,
    "intermediate_size": 8192,
    "vocab_size": 50_000,
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the hub with one model, as a download leaves it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--acme--tiny-chat"
    snapshot = model / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_hub_id_outside_the_catalog_is_read_from_the_local_cache(cache):
    catalog = load_catalog()
    found = find_llm("acme/tiny-chat", catalog)
    assert (found.id, found.layers, found.kv_heads) == ("acme/tiny-chat", 24, 8)
    assert not is_video("acme/tiny-chat", catalog)


def test_a_hub_id_that_is_nowhere_is_refused_with_similar_names(cache):
    with pytest.raises(UsageError, match="not in the catalog"):
        find_llm("acme/other", load_catalog())


@pytest.mark.parametrize(
    ("name", "is_clip"),
    [("MyWan", True), ("mywan", True), ("acme/MyWan-Diffusers", True), ("MyChat", False), ("mychat", False)],
)
def test_compare_finds_a_model_of_the_user_by_every_name_that_plan_finds_it_by(name, is_clip):
    catalog = load_catalog()
    wan, chat = catalog.video_model("wan2.1-t2v-1.3b"), catalog.llm("llama-3.1-8b")
    own = catalog.with_entries(
        video_models=[replace(wan, id="MyWan", repo="acme/MyWan-Diffusers")],
        llms=[replace(chat, id="MyChat")],
    )
    found = find_video_model(name, own) if is_clip else find_llm(name, own)
    assert found.id.startswith("My")
    assert is_video(name, own) is is_clip


@pytest.mark.parametrize("name", ["SVD-XL", "svd_xl", "stabilityai/svd-xl", "Stable Video Diffusion XL"])
def test_svd_xl_is_answered_by_name(name):
    """The model does not exist."""
    with pytest.raises(UsageError, match="does not exist.*svd-xt"):
        find_video_model(name, load_catalog())
