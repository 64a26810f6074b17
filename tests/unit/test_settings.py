import re

import pytest
from pydantic import BaseModel, Field, ValidationError

from filmgate.cli.generate import read_prompts
from filmgate.errors import SettingsError
from filmgate.settings import Section, load_settings, read_settings
from filmgate.settings.wording import explain, masked


def test_the_environment_wins_over_the_file(tmp_path):
    file = tmp_path / "filmgate.toml"
    file.write_text('[pipeline]\ncrf = 20\npreset = "fast"\n')
    settings, origins = read_settings({"FILMGATE_PIPELINE__CRF": "23", "FILMGATE_CONFIG": str(file)})
    assert (settings.pipeline.crf, settings.pipeline.preset) == (23, "fast")
    sources = {origin.key: origin.source for origin in origins}
    assert sources["pipeline.crf"] == "FILMGATE_PIPELINE__CRF"
    assert sources["pipeline.preset"] == str(file)
    assert sources["pipeline.codec"] == "default"


def test_a_byte_order_mark_of_an_editor_is_no_part_of_the_file(tmp_path):
    file = tmp_path / "filmgate.toml"
    file.write_text("[pipeline]\ncrf = 20\n", encoding="utf-8-sig")
    assert load_settings({"FILMGATE_CONFIG": str(file)}).pipeline.crf == 20
    assert read_prompts(None, file, has_image=False) == ["[pipeline]", "crf = 20"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "FILMGATE_PIPELINE__CRFF",
            "20",
            "pipeline.crff is not a setting (from FILMGATE_PIPELINE__CRFF); did you mean pipeline.crf?",
        ),
        ("FILMGATE_PIPELINE__CRF", "99", "must be at most 51"),
        ("FILMGATE_PIPELINE__CODEC", "mjpeg", "'h264', 'hevc' or 'av1'"),
        ("FILMGATE_PIPELINE__PRESET", "warp", "'ultrafast', 'superfast', 'veryfast'"),
        ("FILMGATE_PIPELINE", "x", "pipeline is a section, not a value (from FILMGATE_PIPELINE)"),
        ("FILMGATE_QEUE__URL", "x", "qeue is not a setting (from FILMGATE_QEUE__URL); did you mean queue?"),
        ("FILMGATE_COLOUR", "red", "colour is not a setting (from FILMGATE_COLOUR)"),
    ],
)
def test_a_bad_variable_stops_the_start_and_is_named(name, value, words):
    with pytest.raises(SettingsError, match=re.escape(name)) as caught:
        load_settings({name: value})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[pipeline]\ncrf = 'low'\n", "crf"),
        ("pipeline = 3\n", "pipeline"),
        ("[pipeline\n", "is not a TOML file"),
    ],
)
def test_a_bad_file_stops_the_start_and_is_named(tmp_path, content, words):
    file = tmp_path / "filmgate.toml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"filmgate\.toml") as caught:
        load_settings({"FILMGATE_CONFIG": str(file)})
    assert words in str(caught.value)


class Example(BaseModel):
    name: str = Field(min_length=1, pattern="^[a-z]*$")
    size: int = Field(default=1, ge=1, le=9)
    scopes: list[str] = Field(default=["read"], min_length=1)
    inner: Section = Section()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "name is missing"),
        ({"name": ""}, "name: must not be empty"),
        ({"name": 1}, "name: must be a string"),
        ({"name": "A"}, "name: must match ^[a-z]*$"),
        ({"name": "a", "size": "x"}, "size: must be a whole number"),
        ({"name": "a", "size": 0}, "size: must be at least 1"),
        ({"name": "a", "size": 10}, "size: must be at most 9"),
        ({"name": "a", "scopes": []}, "scopes: must have at least 1 item"),
        ({"name": "a", "inner": "x"}, "inner: must be an object"),
    ],
)
def test_a_wrong_value_is_explained_in_plain_words(given, message):
    with pytest.raises(ValidationError) as caught:
        Example.model_validate(given)
    (error,) = caught.value.errors()
    assert explain(error["loc"][0], error) == message


def test_a_file_that_was_asked_for_must_exist(tmp_path):
    with pytest.raises(SettingsError, match="does not exist"):
        load_settings({"FILMGATE_CONFIG": str(tmp_path / "gone.toml")})


@pytest.mark.parametrize("variable", ["FILMGATE_API__HOST", "FILMGATE_MANAGEMENT__HOST"])
def test_an_empty_address_is_not_every_address(variable):
    """The operating system listens on 0.0.0.0 then."""
    with pytest.raises(SettingsError, match="must not be empty"):
        load_settings({variable: ""})


def test_settings_are_frozen():
    settings = load_settings({})
    with pytest.raises(ValueError, match="frozen"):
        settings.pipeline.crf = 3


def test_secrets_are_masked():
    assert masked("store.secret_key", "hunter2") == "********"
    assert masked("pipeline.crf", 18) == 18
    url = "postgresql://film:hunter2@db:5432/gate"
    assert masked("queue.url", url) == "postgresql://film:********@db:5432/gate"
    for password in ("k/9+x=", "p@ss/word"):  # as base64 has them
        url = f"postgresql://film:{password}@db:5432/gate"
        assert masked("queue.url", url) == "postgresql://film:********@db:5432/gate"
    url = "postgresql://db/gate?user=film&password=hunter2&sslmode=require"
    assert masked("queue.url", url) == "postgresql://db/gate?user=film&password=********&sslmode=require"


def test_a_secret_of_the_wrong_type_is_not_printed(tmp_path):
    file = tmp_path / "filmgate.toml"
    file.write_text("[provider]\napi_key = 12345\n")
    with pytest.raises(SettingsError, match=r"provider\.api_key: must be a string") as caught:
        load_settings({"FILMGATE_CONFIG": str(file)})
    assert "12345" not in str(caught.value)
