"""Model cards: found by name or alias; an error in a file names the key."""

from dataclasses import replace
from importlib.resources import files

import pytest

from filmgate.errors import ModelLoading, ModelNotFound, ModelNotServed, SettingsError
from filmgate.jobs import VideoSpec
from filmgate.models.cards import ServedModels, open_registry, parse_aliases, read_cards

CARD = open_registry("flipbook").default


def test_a_model_is_found_by_name_by_alias_and_by_default():
    registry = open_registry("flipbook", aliases={"sora-2": None})
    assert registry.find(None) is registry.find("flipbook") is registry.find("sora-2")
    with pytest.raises(ModelNotFound, match="flipbook"):
        registry.find("flipbok")


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


@pytest.mark.parametrize(
    ("key", "known", "wrong"),
    [
        ("size", "default = [256, 256]", "default = [250, 256]"),
        ("size", "multiple = 32", "multiple = 0"),
        ("frames", "default = 33", "default = 32"),
        ("frames", "step = 4", "step = 0"),
        ("steps", "default = 10", "default = 0"),
        ("guidance", "default = 1.0", "default = 0.5"),
    ],
)
def test_a_default_that_the_model_cannot_render_is_an_error(key, known, wrong):
    """Otherwise every request that leaves the field out would fail on a worker."""
    text = files("filmgate.models").joinpath("cards.toml").read_text()
    with pytest.raises(SettingsError, match=rf"models\.toml: flipbook\.limits\.{key}: "):
        read_cards(text.replace(known, wrong), "models.toml")


def test_an_unknown_key_in_a_card_is_an_error():
    text = files("filmgate.models").joinpath("cards.toml").read_text()
    for known, unknown in (
        ('owner = "filmgate"', 'owner = "x"\ncolour = 1'),
        ("multiple = 32", "multiple = 32, hue = 1"),
    ):
        with pytest.raises(SettingsError, match=r"colour|hue"):
            read_cards(text.replace(known, unknown), "models.toml")


def test_a_default_model_that_nobody_serves_is_replaced_by_one_that_is_served():
    wan, ltx = replace(CARD, name="wan"), replace(CARD, name="ltx")
    served = [ServedModels()]
    registry = open_registry("wan", read_served=lambda: served[0])
    with pytest.raises(ModelNotServed, match="no worker serves the default model wan"):
        registry.find(None)
    served[0] = ServedModels((), frozenset({"wan"}))
    for name in (None, "wan"):
        with pytest.raises(ModelLoading, match="a worker is loading wan"):
            registry.find(name)
    served[0] = ServedModels((ltx,), frozenset({"ltx"}))
    assert registry.find(None) is ltx
    served[0] = ServedModels((ltx, wan), frozenset({"ltx", "wan"}))
    assert registry.find(None) is wan
    flipbook = open_registry("flipbook", read_served=lambda: served[0])
    assert flipbook.default is ltx
    served[0] = ServedModels((ltx,), cold=frozenset({"ltx"}))
    assert flipbook.default is ltx, "no worker is alive, and flipbook may not scale from zero"
    for cold in ("*", "flipbook", "wan"):
        served[0] = ServedModels(cold=frozenset({cold}))
        assert flipbook.default.name == open_registry("flipbook").default.name == "flipbook"


@pytest.mark.parametrize("text", ["wan=wan", "a=b,b=a", "a=b,b=c,c=b", "=ltx"])
def test_an_alias_that_leads_to_no_model_is_an_error_at_start(text):
    """Not at the first request, which would look it up for ever."""
    with pytest.raises(SettingsError, match="names no model"):
        parse_aliases(text)


def test_an_alias_means_the_default_model_or_the_model_it_names():
    assert parse_aliases(" sora-2, fast = ltx,") == {"sora-2": None, "fast": "ltx"}
    assert parse_aliases("a=b,b=ltx") == {"a": "b", "b": "ltx"}
    ltx = replace(CARD, name="ltx")
    served = ServedModels((ltx,), frozenset({"flipbook", "ltx"}))
    registry = open_registry("flipbook", "", lambda: served, parse_aliases("sora-2,fast=ltx"))
    assert (registry.find("sora-2").name, registry.find("fast").name) == ("flipbook", "ltx")
    assert (registry.aliases_of(registry.default), registry.aliases_of(ltx)) == (["sora-2"], ["fast"])


@pytest.mark.parametrize(
    ("prompt", "guidance", "expected"),
    [
        ("a red ball bounces", 1.0, []),
        ("Two FISHES", 1.0, []),
        ("a cat on a skateboard", 1.0, ["18 objects"]),
        ("a cat", 5.0, ["18 objects", "guidance 5"]),
    ],
)
def test_a_model_warns_about_what_it_cannot_show(prompt, guidance, expected):
    spec = VideoSpec("flipbook", prompt, 256, 256, 2.0, 16, guidance=guidance)
    found = CARD.warnings(spec)
    assert [part in text for part, text in zip(expected, found, strict=True)] == [True] * len(expected)


def test_models_that_live_workers_serve_are_added_to_those_in_files():
    served = [replace(CARD, name="wan", aliases=())]
    registry = open_registry("flipbook", read_served=lambda: ServedModels(tuple(served)))
    assert registry.find("wan") is served[0]
    assert [card.name for card in registry.cards] == ["flipbook", "wan"]
    served.clear()
    with pytest.raises(ModelNotFound):
        registry.find("wan")


def test_a_card_in_a_file_overrides_a_workers_card_and_keeps_its_aliases(tmp_path):
    file = tmp_path / "models.toml"
    text = files("filmgate.models").joinpath("cards.toml").read_text()
    file.write_text(text.replace('owner = "filmgate"', 'owner = "filmgate"\naliases = ["book"]'))
    rivals = (replace(CARD, created=1), replace(CARD, name="book", created=2))
    registry = open_registry("flipbook", str(file), lambda: ServedModels(rivals))
    assert registry.find("flipbook") is registry.default
    assert registry.find("book") is registry.default
    assert len(registry.cards) == 1
