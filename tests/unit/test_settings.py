import re
from pathlib import Path

import pytest

from filmgate.cli.config import shown
from filmgate.errors import SettingsError
from filmgate.settings import Origin, load_settings, read_settings
from filmgate.settings.reference import to_markdown

ROOT = Path(__file__).parents[2]


def test_the_environment_wins_over_the_file(tmp_path):
    file = tmp_path / "filmgate.toml"
    file.write_text('[pipeline]\ncrf = 20\npreset = "fast"\n')
    settings, origins = read_settings({"FILMGATE_PIPELINE__CRF": "23"}, file)
    assert (settings.pipeline.crf, settings.pipeline.preset) == (23, "fast")
    sources = {origin.key: origin.source for origin in origins}
    assert sources["pipeline.crf"] == "FILMGATE_PIPELINE__CRF"
    assert sources["pipeline.preset"] == str(file)
    assert sources["pipeline.codec"] == "default"


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
        ("FILMGATE_PIPELINE", "x", "pipeline"),
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
    [("[pipeline]\ncrf = 'low'\n", "crf"), ("pipeline = 3\n", "pipeline"), ("[pipeline\n", "cannot be read")],
)
def test_a_bad_file_stops_the_start_and_is_named(tmp_path, content, words):
    file = tmp_path / "filmgate.toml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=r"filmgate\.toml") as caught:
        load_settings({}, file)
    assert words in str(caught.value)


def test_a_file_that_was_asked_for_must_exist(tmp_path):
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


def test_the_documentation_is_up_to_date():
    assert (ROOT / "docs/settings.md").read_text() == to_markdown(), "run make docs"
