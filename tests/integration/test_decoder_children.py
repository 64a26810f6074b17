"""Child processes that decode untrusted bytes inherit no environment variable of the server."""

import subprocess
import sys

import pytest

from filmgate.admission.uploads.images import clean_image
from filmgate.jobs import Size
from filmgate.models.requests import Upload
from filmgate.providers.images import fit_image
from filmgate.providers.managed.stills import NoStills, make_stills
from filmgate.settings import AdmissionSettings

SECRET = "secret-of-the-server"


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """A file that receives the environment of every child process that runs Python."""
    log, python = tmp_path / "environment", tmp_path / "python"
    python.write_text(f'#!/bin/sh\n/usr/bin/env >> {log}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("FILMGATE_TEST_SECRET", SECRET)
    return log


def test_image_decoders_inherit_no_secret(seen, picture):
    data = clean_image(Upload("image", picture.read_bytes()), AdmissionSettings())
    assert fit_image(data, Size(32, 32)).startswith(b"\x89PNG")
    assert SECRET not in seen.read_text()
    assert seen.read_text().count("PWD=") == 2


def test_the_clip_decoder_inherits_no_secret(seen):
    with pytest.raises(NoStills, match="decoded"):
        make_stills([b"\x00\x00\x00\x18ftypisom damaged"])
    assert SECRET not in seen.read_text()


def test_the_decoder_of_uploads_imports_nothing_that_takes_long():
    """It starts once per image."""
    imported = "import sys, filmgate.admission.uploads.image_child; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", imported], check=False).returncode == 0
