"""Model cards: limits, nearest values, files that are refused with the key's name."""

from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.errors import ModelNotFound, SettingsError
from filmgate.models.cards import open_shelf, read_cards

CARD = open_shelf("flipbook").default
SIDES = st.integers(1, 10_000)


@given(SIDES, SIDES)
def test_the_nearest_size_is_always_allowed(width, height):
    assert CARD.size.allows(*CARD.size.nearest(width, height))


@given(st.integers(2, 16), st.integers(2, 16))
def test_an_allowed_size_is_its_own_nearest(columns, rows):
    size = columns * 32, rows * 32
    assert CARD.size.allows(*size)
    assert CARD.size.nearest(*size) == size


@given(st.floats(0.25, 12))
def test_any_length_in_range_becomes_a_frame_count_the_decoder_yields(seconds):
    frames = CARD.frames.count(seconds, 16)
    assert frames % 4 == 1
    assert abs(CARD.frames.seconds(frames, 16) - seconds) <= 0.125


def test_a_model_is_found_by_name_by_alias_and_by_default():
    shelf = open_shelf("flipbook")
    assert shelf.find(None) is shelf.find("flipbook") is shelf.find("sora-2")
    with pytest.raises(ModelNotFound, match="flipbook"):
        shelf.find("flip-book")


def test_an_operators_file_adds_models(tmp_path):
    shipped = open_shelf("flipbook").default
    file = tmp_path / "models.toml"
    file.write_text(
        """
        [wan]
        owner = "us"
        created = 1
        size = { default = [832, 480], multiple = 16, min_side = 256, max_side = 1280, max_pixels = 921600 }
        frames = { default = 81, step = 4, offset = 1, min = 5, max = 121 }
        fps = { default = 16, min = 8, max = 24 }
        steps = { default = 50, min = 1, max = 100 }
        guidance = { default = 5.0, min = 1.0, max = 20.0 }
        rates = { text = 0.5, denoise = 1.0, decode = 1.0, upload = 1.0 }
        """
    )
    shelf = open_shelf("wan", str(file))
    assert [card.name for card in shelf.cards] == [shipped.name, "wan"]
    assert shelf.default.sources == frozenset()


@pytest.mark.parametrize(
    ("text", "key"),
    [("[x", ""), ("[x]\nowner = 1", "x"), ("x = 1", "x"), ("[flipbook]\nsise = 1", "flipbook")],
)
def test_a_bad_card_stops_the_start_with_its_key(text, key):
    with pytest.raises(SettingsError, match=rf"models\.toml: .*{key}"):
        read_cards(text, "models.toml")


def test_an_unknown_key_in_a_card_is_refused():
    text = files("filmgate.admission").joinpath("models.toml").read_text()
    for known, unknown in (
        ('owner = "filmgate"', 'owner = "x"\ncolour = 1'),
        ("multiple = 32", "multiple = 32, hue = 1"),
    ):
        with pytest.raises(SettingsError, match=r"colour|hue"):
            read_cards(text.replace(known, unknown), "models.toml")


def test_a_default_nobody_has_stops_the_start():
    with pytest.raises(SettingsError, match="no model card"):
        open_shelf("wan")


def test_what_workers_bring_stands_beside_the_files_and_goes_with_them():
    brought = [replace(CARD, name="wan", aliases=())]
    shelf = open_shelf("flipbook", brought=lambda: tuple(brought))
    assert shelf.find("wan") is brought[0]
    assert [card.name for card in shelf.cards] == ["flipbook", "wan"]
    brought.clear()
    with pytest.raises(ModelNotFound):
        shelf.find("wan")


def test_a_file_goes_before_a_worker_and_an_alias_cannot_be_taken():
    rivals = [replace(CARD, created=1), replace(CARD, name="sora-2", created=2, aliases=())]
    shelf = open_shelf("flipbook", brought=lambda: rivals)
    assert shelf.find("flipbook") is shelf.default
    assert shelf.find("sora-2") is shelf.default
    assert len(shelf.cards) == 1
