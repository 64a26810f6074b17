"""Model cards: found by name or alias; an error in a file names the key."""

from dataclasses import replace
from importlib.resources import files

import pytest

from filmgate.errors import ModelNotFound, SettingsError
from filmgate.models.cards import open_registry, read_cards

CARD = open_registry("flipbook").default


def test_a_model_is_found_by_name_by_alias_and_by_default():
    registry = open_registry("flipbook")
    assert registry.find(None) is registry.find("flipbook") is registry.find("sora-2")
    with pytest.raises(ModelNotFound, match="flipbook"):
        registry.find("flip-book")


def test_an_operators_file_adds_models(tmp_path):
    shipped = open_registry("flipbook").default
    file = tmp_path / "models.toml"
    file.write_text(
        """
        [wan]
        owner = "us"
        created = 1
        rates = { text = 0.5, denoise = 1.0, decode = 1.0, upload = 1.0 }

        [wan.limits]
        size = { default = [832, 480], multiple = 16, min_side = 256, max_side = 1280, max_pixels = 921600 }
        frames = { default = 81, step = 4, offset = 1, min = 5, max = 121 }
        fps = { default = 16, min = 8, max = 24 }
        steps = { default = 50, min = 1, max = 100 }
        guidance = { default = 5.0, min = 1.0, max = 20.0 }
        """
    )
    registry = open_registry("wan", str(file))
    assert [card.name for card in registry.cards] == [shipped.name, "wan"]
    assert registry.default.limits.sources == frozenset()


@pytest.mark.parametrize(
    ("text", "key"),
    [("[x", ""), ("[x]\nowner = 1", "x"), ("x = 1", "x"), ("[flipbook]\nsise = 1", "flipbook")],
)
def test_an_invalid_card_is_an_error_that_names_the_key(text, key):
    with pytest.raises(SettingsError, match=rf"models\.toml: .*{key}"):
        read_cards(text, "models.toml")


def test_an_unknown_key_in_a_card_is_an_error():
    text = files("filmgate.models").joinpath("cards.toml").read_text()
    for known, unknown in (
        ('owner = "filmgate"', 'owner = "x"\ncolour = 1'),
        ("multiple = 32", "multiple = 32, hue = 1"),
    ):
        with pytest.raises(SettingsError, match=r"colour|hue"):
            read_cards(text.replace(known, unknown), "models.toml")


def test_a_default_model_without_a_card_is_an_error():
    with pytest.raises(SettingsError, match="no model card"):
        open_registry("wan")


def test_models_that_live_workers_serve_are_added_to_those_in_files():
    served = [replace(CARD, name="wan", aliases=())]
    registry = open_registry("flipbook", read_served=lambda: tuple(served))
    assert registry.find("wan") is served[0]
    assert [card.name for card in registry.cards] == ["flipbook", "wan"]
    served.clear()
    with pytest.raises(ModelNotFound):
        registry.find("wan")


def test_a_card_in_a_file_overrides_a_workers_card_and_keeps_its_aliases():
    rivals = [replace(CARD, created=1), replace(CARD, name="sora-2", created=2, aliases=())]
    registry = open_registry("flipbook", read_served=lambda: rivals)
    assert registry.find("flipbook") is registry.default
    assert registry.find("sora-2") is registry.default
    assert len(registry.cards) == 1
