"""Settings: sources, validation and documentation."""

import re

import pytest

from filmgate.cli.config import shown
from filmgate.errors import SettingsError
from filmgate.settings import Origin, load_settings, read_settings
from tests.settings_table import make_table, read_table


def test_the_environment_overrides_the_file(tmp_path):
    file = tmp_path / "filmgate.toml"
    file.write_text('[pipeline]\ncrf = 20\npreset = "fast"\n')
    settings, origins = read_settings({"FILMGATE_PIPELINE__CRF": "23"}, file)
    assert (settings.pipeline.crf, settings.pipeline.preset) == (23, "fast")
    sources = {origin.key: origin.source for origin in origins}
    assert sources["pipeline.crf"] == "FILMGATE_PIPELINE__CRF"
    assert sources["pipeline.preset"] == str(file)
    assert sources["pipeline.codec"] == "default"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FILMGATE_PIPELINE__CRFF", "20", "unknown setting pipeline.crff; did you mean pipeline.crf?"),
        ("FILMGATE_PIPELINE__CRF", "99", "less than or equal to 51"),
        ("FILMGATE_PIPELINE__CODEC", "mjpeg", "'h264', 'hevc' or 'av1'"),
        ("FILMGATE_PIPELINE", "x", "pipeline"),
        ("FILMGATE_COLOUR", "red", "unknown setting colour"),
    ],
)
def test_an_invalid_variable_is_an_error_that_names_it(name, value, message):
    with pytest.raises(SettingsError, match=re.escape(name)) as caught:
        load_settings({name: value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [("[pipeline]\ncrf = 'low'\n", "crf"), ("pipeline = 3\n", "pipeline"), ("[pipeline\n", "cannot be read")],
)
def test_an_invalid_file_is_an_error_that_names_it(tmp_path, content, message):
    file = tmp_path / "filmgate.toml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"filmgate\.toml") as caught:
        load_settings({}, file)
    assert message in str(caught.value)


def test_a_file_named_by_the_environment_must_exist(tmp_path):
    with pytest.raises(SettingsError, match="does not exist"):
        load_settings({"FILMGATE_CONFIG": str(tmp_path / "gone.toml")})


def test_settings_are_frozen():
    settings = load_settings({})
    with pytest.raises(ValueError, match="frozen"):
        settings.pipeline.crf = 3


def test_secrets_are_masked():
    assert shown(Origin("store.secret_key", "hunter2", "default", "")) == "********"
    assert shown(Origin("pipeline.crf", 18, "default", "")) == 18
    url = Origin("queue.url", "postgresql://film:hunter2@db:5432/gate", "default", "")
    assert shown(url) == "postgresql://film:********@db:5432/gate"


def test_the_settings_page_lists_every_setting_as_it_is_declared():
    assert read_table() == make_table(), "run `python -m tests.settings_table`"
