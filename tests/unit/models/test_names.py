"""One vocabulary of models and GPUs for the planner, the command line and the API."""

import pytest

from filmgate.catalog.loader import load_catalog
from filmgate.cli.plan.inputs import find_video_model
from filmgate.errors import ModelNotFound, UsageError
from filmgate.models.cards import ModelRegistry, ServedModels, open_registry
from filmgate.models.names import NamedModel, name_model

WAN = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"


@pytest.mark.parametrize(
    "text", [WAN, WAN.lower(), "wan2.1-t2v-1.3b", "Wan2.1 T2V 1.3B", WAN.partition("/")[2]]
)
def test_a_catalog_model_has_one_name_everywhere(text):
    assert name_model(text) == NamedModel("wan2.1-t2v-1.3b", WAN)
    assert find_video_model(text, load_catalog()).id == "wan2.1-t2v-1.3b"


@pytest.mark.parametrize(
    ("text", "name", "location"),
    [
        ("Flipbook", "flipbook", "flipbook"),
        ("film=wan2.1-t2v-1.3b", "film", WAN),
        (f"{WAN}@abc123", "wan2.1-t2v-1.3b", f"{WAN}@abc123"),
        ("s3://bucket/models/tiny/v2/", "tiny", "s3://bucket/models/tiny/v2/"),
        ("wan2.1-t2v-13b", "wan2.1-t2v-13b", "wan2.1-t2v-13b"),
    ],
)
def test_names_and_locations(text, name, location):
    assert name_model(text) == NamedModel(name, location)


def test_an_empty_name_or_location_is_refused():
    for text in ("=folder", "name="):
        with pytest.raises(UsageError, match="is not NAME or NAME=LOCATION"):
            name_model(text)


def test_the_api_accepts_every_name_of_a_served_model():
    card = open_registry("flipbook").find("FlipBook")
    assert card.name == "flipbook"
    served = ServedModels((card,), frozenset({card.name}))
    registry = ModelRegistry((), "flipbook", lambda: served)
    assert registry.find("Flip-Book") is card
    with pytest.raises(ModelNotFound, match="no model is named 'gpt-5'; available models: flipbook"):
        registry.find("gpt-5")


@pytest.mark.parametrize("text", ["RTX-4090", "rtx4090", "RTX 4090", "NVIDIA GeForce RTX 4090"])
def test_a_gpu_has_one_name_in_every_spelling(text):
    assert load_catalog().gpu(text).name == "RTX4090"


def test_no_two_gpus_or_models_share_a_spelling():
    catalog = load_catalog()
    assert [catalog.gpu(name).name for name in catalog.gpus] == list(catalog.gpus)
    assert [catalog.video_model(name).id for name in catalog.video_models] == list(catalog.video_models)
