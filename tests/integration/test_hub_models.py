"""Models of the hub: pulled with progress, licence, revision and checksums, then loaded at that revision."""

import threading
from pathlib import Path

import pytest

from filmgate.errors import ModelError, ModelUnavailable, UsageError
from filmgate.models.names import shipped_folder
from filmgate.models.weights import ensure_adapter, ensure_local, hub, inventory
from filmgate.settings import load_settings
from tests.hub import Hub

ID = "some-team/tiny"
NOT_LOADED = ("README.md", "unused.safetensors", "vae/diffusion_pytorch_model.fp16.safetensors")


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A hub with the miniature model, an empty cache, and no other hub within reach."""
    served = Hub(ID, shipped_folder("miniature"))
    served.files |= dict.fromkeys(NOT_LOADED, b"not loaded")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", served.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        served.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    yield served
    served.close()


def test_a_pulled_model_states_size_licence_and_revision_and_is_checked(server):
    said, seen = [], []
    model = hub.pull_hub_model(ID, lambda done, total: seen.append((done, total)), said.append)
    size = model.manifest.total_bytes
    assert said == [
        f"{ID}: {len(model.manifest.files)} files, 0.00 GiB, licence apache-2.0, revision {'a' * 40}"
    ]
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)
    assert (model.licence, model.revision, model.is_whole) == ("apache-2.0", "a" * 40, True)
    names = {file.path for file in model.manifest.files}
    assert "model_index.json" in names
    assert names.isdisjoint(
        {"README.md", "unused.safetensors", "vae/diffusion_pytorch_model.fp16.safetensors"}
    )
    assert hub.verify_hub_model(ID).damaged == ()


def test_a_pulled_model_is_loaded_at_its_revision_without_asking_the_hub(server):
    folder = str(hub.pull_hub_model(ID).folder)
    server.requested.clear()
    server.revision = "b" * 40
    assert ensure_local(ID, None, None) == folder
    assert ensure_local(f"{ID}@{'a' * 12}", None, None) == folder
    assert server.requested == []
    assert ensure_local(f"{ID}@{'b' * 40}", None, None) != folder
    assert hub.find_hub_model(ID).revision == "b" * 40


def test_a_tag_is_pinned_like_a_revision(server):
    """A worker that names a tag starts without the hub, and keeps its revision when the tag moves."""
    folder = ensure_local(f"{ID}@v1.0", None, None)
    server.revision, server.status = "b" * 40, 503
    for text in (ID, f"{ID}@v1.0", f"{ID}@{'a' * 40}"):
        assert ensure_local(text, None, None) == folder
    server.status = None
    assert hub.pull_hub_model(f"{ID}@v1.0").revision == "b" * 40


def test_a_file_that_arrives_damaged_is_refused_and_fetched_again(server):
    weights = "vae/diffusion_pytorch_model.safetensors"
    server.damaged.add(weights)
    with pytest.raises(ModelError, match=f"{weights} arrived damaged; run the same command again"):
        hub.pull_hub_model(ID)
    assert hub.find_hub_model(ID) is None
    server.damaged.clear()
    model = hub.pull_hub_model(ID)
    (model.folder / weights).write_bytes(b"damaged on disk")
    assert hub.verify_hub_model(ID).damaged == (weights,)
    assert hub.pull_hub_model(ID).is_whole


def test_a_damaged_model_is_listed_as_incomplete_until_it_is_pulled_again(server):
    """Its other files still fill the disk."""

    def states():
        return [
            model.state for model in inventory.list_stored_models(load_settings({})) if model.source == "hub"
        ]

    folder = hub.pull_hub_model(ID).folder
    (folder / "model_index.json").resolve().write_bytes(b"damaged")
    assert hub.verify_hub_model(ID).damaged == ("model_index.json",)
    assert states() == ["incomplete"]
    hub.pull_hub_model(ID)
    assert states() == ["ready"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"manifest": {"format": 1, "files": []}}'])
def test_a_damaged_pin_is_an_error_that_a_pull_repairs(server, text):
    pin = hub.pull_hub_model(ID).folder.parents[1] / hub.PIN_FILE
    pin.write_text(text)
    for read in (hub.find_hub_model, hub.evict_hub_model, hub.verify_hub_model):
        with pytest.raises(ModelError, match=hub.PIN_FILE):
            read(ID)
    assert hub.pull_hub_model(ID).is_whole
    assert hub.find_hub_model(ID) is not None


def test_two_that_pin_a_model_at_once_both_succeed(server, monkeypatch):
    """Both have written their pin before either moves it into place."""
    model, errors, both = hub.pull_hub_model(ID), [], threading.Barrier(2, timeout=60)
    write_text = Path.write_text

    def meet(path, text):
        write_text(path, text)
        both.wait()

    def pin():
        try:
            hub._write_pin(model)
        except OSError as exc:
            errors.append(exc)

    monkeypatch.setattr(Path, "write_text", meet)
    threads = [threading.Thread(target=pin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert hub.find_hub_model(ID) == model
    assert pins_in(model) == [hub.PIN_FILE]


def test_a_pin_that_cannot_be_written_leaves_the_one_before_and_no_other_file(server, monkeypatch):
    model = hub.pull_hub_model(ID)

    def fail(path, text):
        path.write_bytes(text[:10].encode())
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="No space left"):
        hub._write_pin(model)
    assert hub.find_hub_model(ID) == model
    assert pins_in(model) == [hub.PIN_FILE]


def pins_in(model):
    return [path.name for path in model.folder.parents[1].iterdir() if path.is_file()]


def test_hub_folder_and_package_are_listed_alike_and_found_in_any_spelling(server, tmp_path):
    hub.pull_hub_model(ID)
    (tmp_path / "mine" / "wan").mkdir(parents=True)
    (tmp_path / "mine" / "wan" / "model_index.json").write_text("{}")
    environ = {"FILMGATE_MODELS__FOLDERS": str(tmp_path / "mine"), "FILMGATE_DATA": str(tmp_path / "none")}
    found = inventory.list_stored_models(load_settings(environ))
    assert [(model.model, model.source) for model in found] == [
        ("flipbook", "package"),
        ("miniature", "package"),
        (str(tmp_path / "mine" / "wan"), "folder"),
        (ID, "hub"),
    ]
    assert [model.model for model in inventory.search_models("TINY", found)] == [ID]
    assert not (tmp_path / "none").exists()


def test_errors_include_a_remedy(server):
    with pytest.raises(UsageError, match="the hub has no model other/model; check the spelling"):
        hub.pull_hub_model("other/model")
    del server.files["model_index.json"]
    with pytest.raises(UsageError, match="is not a diffusers pipeline: it has no model_index.json"):
        hub.pull_hub_model(ID)
    server.status = 503
    with pytest.raises(ModelUnavailable, match="HTTP 503 from the model hub for some-team/tiny; try again"):
        hub.pull_hub_model(ID)
    with pytest.raises(ModelError, match=f"is not pinned on this machine; run `filmgate models pull {ID}`"):
        hub.verify_hub_model(ID)


@pytest.fixture
def adapters(server):
    """A hub whose repository has LoRA files instead of a pipeline."""
    server.files = {"style.safetensors": b"style", "README.md": b"read", "fp8/style.safetensors": b"small"}
    return server


def test_an_adapter_of_the_hub_is_pulled_once_checked_and_pinned(adapters):
    """A location is a repository with one file, or names its file."""
    file = ensure_adapter(ID, None, None)
    assert (file.name, file.read_bytes()) == ("style.safetensors", b"style")
    adapters.requested.clear()
    adapters.revision = "b" * 40
    assert ensure_adapter(ID, None, None) == file
    assert ensure_adapter(f"{ID}/style.safetensors", None, None) == file
    assert adapters.requested == []
    named = ensure_adapter(f"{ID}/fp8/style.safetensors", None, None)
    assert named.read_bytes() == b"small"
    assert hub.find_hub_model(ID).revision == "a" * 40
    assert {record.path for record in hub.find_hub_model(ID).manifest.files} == {
        "style.safetensors",
        "fp8/style.safetensors",
    }


def test_a_repository_without_a_file_name_is_not_one_of_two_pulled_files(adapters):
    adapters.files["other.safetensors"] = b"other"
    for name in ("style", "other"):
        ensure_adapter(f"{ID}/{name}.safetensors", None, None)
    with pytest.raises(UsageError, match="has 2 safetensors files; name one of other.safetensors, style"):
        ensure_adapter(ID, None, None)


def test_errors_of_an_adapter_include_a_remedy(adapters):
    with pytest.raises(
        UsageError, match=f"{ID} has no file a.safetensors; name one of fp8/style.safetensors,"
    ):
        ensure_adapter(f"{ID}/a.safetensors", None, None)
    adapters.files["other.safetensors"] = b"other"
    with pytest.raises(
        UsageError, match=f"{ID} has 2 safetensors files; name one of .*, as in {ID}/fp8/style"
    ):
        ensure_adapter(ID, None, None)
    with pytest.raises(UsageError, match="a LoRA adapter is named in models.adapters_file instead"):
        hub.pull_hub_model(ID)
    adapters.files |= {"style.safetensors": b"style"}
    adapters.damaged.add("style.safetensors")
    with pytest.raises(ModelError, match="style.safetensors arrived damaged; run the same command again"):
        ensure_adapter(f"{ID}/style.safetensors", None, None)


def test_a_hub_model_is_evicted_and_pulled_again(server):
    folder = hub.pull_hub_model(ID).folder
    assert hub.evict_hub_model(ID) is True
    assert not folder.exists()
    assert (hub.find_hub_model(ID), hub.list_hub_models()) == (None, [])
    assert hub.evict_hub_model(ID) is False
    assert hub.pull_hub_model(ID).is_whole
