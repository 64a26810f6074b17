"""Models share the device's memory; the one nobody asked for longest makes room."""

import pytest

from filmgate.errors import OutOfMemory
from filmgate.worker.loaded_models import ModelShelf

SIZES = {"small": 2, "medium": 5, "large": 9, "huge": 11}


@pytest.fixture
def told():
    return []


@pytest.fixture
def shelf(told):
    return ModelShelf(
        10,
        measure=SIZES.__getitem__,
        load=lambda model: told.append(f"load {model}") or model,
        unload=lambda model: told.append(f"unload {model}"),
    )


def test_a_loaded_model_is_not_loaded_again(shelf, told):
    assert (shelf.take("small"), shelf.take("small")) == ("small", "small")
    assert told == ["load small"]


def test_the_least_recently_used_model_makes_room_before_the_next_is_loaded(shelf, told):
    for model in ("small", "medium", "small", "large"):
        shelf.take(model)
    assert told == ["load small", "load medium", "unload medium", "unload small", "load large"]
    assert shelf.loaded == ("large",)


def test_only_as_many_leave_as_must(shelf, told):
    for model in ("small", "medium"):
        shelf.take(model)
    SIZES["other"] = 4
    shelf.take("other")
    assert (told[-2:], shelf.loaded) == (["unload small", "load other"], ("medium", "other"))


def test_a_model_that_fits_no_shelf_is_refused_and_nothing_leaves(shelf):
    shelf.take("small")
    with pytest.raises(OutOfMemory, match="huge"):
        shelf.take("huge")
    assert shelf.loaded == ("small",)
