"""Models share the device's memory; the least recently used one makes room for the next."""

import pytest

from filmgate.errors import OutOfMemory
from filmgate.worker.loaded_models import LoadedModels

SIZES = {"small": 2, "medium": 5, "large": 9, "huge": 11, "other": 4}


@pytest.fixture
def events():
    return []


@pytest.fixture
def models(events):
    return LoadedModels(
        10,
        estimate=SIZES.__getitem__,
        load=lambda name: events.append(f"load {name}") or name,
        unload=lambda name, _model: events.append(f"unload {name}"),
        forget=lambda name: events.append(f"forget {name}"),
    )


def test_a_loaded_model_is_not_loaded_again(models, events):
    assert (models.get("small"), models.get("small")) == ("small", "small")
    assert events == ["load small"]


def test_the_least_recently_used_models_are_unloaded_before_the_next_is_loaded(models, events):
    for name in ("small", "medium", "small", "large"):
        models.get(name)
    unloaded = ["unload medium", "forget medium", "unload small", "forget small"]
    assert events == ["load small", "load medium", *unloaded, "load large"]
    assert models.names == ("large",)


def test_no_more_models_are_unloaded_than_necessary(models, events):
    for name in ("small", "medium", "other"):
        models.get(name)
    assert events[-3:] == ["unload small", "forget small", "load other"]
    assert models.names == ("medium", "other")


def test_a_model_larger_than_the_budget_is_refused_and_nothing_is_unloaded(models, events):
    models.get("small")
    with pytest.raises(OutOfMemory, match="huge needs .* set pipeline.offload to auto"):
        models.get("huge")
    assert models.names == ("small",)
    assert events == ["load small", "forget huge"]


def test_a_model_that_cannot_be_loaded_is_forgotten(events):
    def fail(name):
        raise OSError(name)

    models = LoadedModels(10, estimate=SIZES.__getitem__, load=fail, unload=None, forget=events.append)
    with pytest.raises(OSError, match="small"):
        models.get("small")
    assert (events, models.names) == (["small"], ())
