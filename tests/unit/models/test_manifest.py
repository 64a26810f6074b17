import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.errors import ModelError
from filmgate.models.weights.manifest import FileRecord, Manifest, build_manifest, parse_manifest

SHA = "ab" * 32
FILE = FileRecord("vae/config.json", 12, SHA)


def test_a_manifest_is_equal_after_a_json_round_trip():
    manifest = Manifest((FILE, FileRecord("model_index.json", 30, "cd" * 32)))
    assert parse_manifest(manifest.to_json(), "here") == manifest
    assert (manifest.total_bytes, len(manifest.digest)) == (42, 64)


def test_another_file_changes_the_digest():
    assert Manifest((FILE,)).digest != Manifest((FileRecord(FILE.path, 13, SHA),)).digest


def test_a_manifest_includes_linked_folders(tmp_path):
    """Models share text encoders. A version without them cannot be loaded, and cannot be replaced."""
    model, shared = tmp_path / "model", tmp_path / "shared"
    for folder in (model, shared, model / ".cache"):
        folder.mkdir()
        (folder / "weights.safetensors").write_bytes(b"weights")
    (model / "text_encoder").symlink_to(shared)
    (shared / "back").symlink_to(model)
    paths = [file.path for file in build_manifest(model).files]
    assert paths == ["text_encoder/weights.safetensors", "weights.safetensors"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "", "a\\b", "vae/.."])
def test_a_path_outside_the_folder_is_rejected(path):
    with pytest.raises(ModelError, match="invalid entry"):
        parse_manifest(Manifest((FileRecord(path, 1, SHA),)).to_json(), "here")


@pytest.mark.parametrize(
    "files",
    [
        [],
        [{"path": "a", "size_bytes": 1, "sha256": SHA}] * 2,
        [{"path": "a", "size_bytes": -1, "sha256": SHA}],
        [{"path": "a", "size_bytes": 1, "sha256": "zz"}],
        [{"path": "a"}],
        ["a"],
    ],
)
def test_an_invalid_list_of_files_is_rejected(files):
    with pytest.raises(ModelError):
        parse_manifest(json.dumps({"format": 1, "files": files}), "here")


def test_a_newer_format_is_rejected_with_its_number():
    with pytest.raises(ModelError, match="format 2"):
        parse_manifest(json.dumps({"format": 2, "files": []}), "here")


@given(st.text(max_size=60))
def test_any_text_is_rejected_with_a_model_error(text):
    with pytest.raises(ModelError):
        parse_manifest(text, "here")
