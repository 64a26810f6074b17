"""The values of `--model`, and the name and location of the model that each selects."""

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePath

from filmgate.catalog.names import find_known_model, fold_name
from filmgate.errors import UsageError
from filmgate.models.weights.location import is_remote, parse_location

SHIPPED = ("flipbook", "miniature")
"""Models in the package, under models/shipped: Flipbook, and a small one with random weights for tests."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?", re.ASCII)
_HUB_FILE = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?(/[\w. /-]+\.safetensors)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model: the name clients use, and where its weights are."""

    name: str
    location: str


def shipped_folder(name: str) -> Path:
    """The folder of a model that comes with the package."""
    return Path(str(files("filmgate.models") / "shipped" / name))


def is_hub_id(text: str) -> bool:
    """Whether this is OWNER/NAME or OWNER/NAME@REVISION, and not a folder."""
    return not _is_path(text) and _HUB_ID.fullmatch(text) is not None


def is_hub_file(text: str) -> bool:
    """Whether this is a hub id, or a hub id and a file: OWNER/NAME@REVISION/FILE.safetensors."""
    return not _is_path(text) and ".." not in text and _HUB_FILE.fullmatch(text) is not None


def _is_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or (bool(text) and Path(text).exists())


def check_location(location: str) -> None:
    """Raises UsageError for what is neither in the package nor a diffusers folder, a hub id or in S3."""
    if location in SHIPPED or is_remote(location) or is_hub_id(location):
        return
    if not _is_path(location):
        raise UsageError(
            f"there is no model {location!r}; use {', '.join(SHIPPED)}, a name of the catalog such as "
            "wan2.1-t2v-1.3b, a diffusers folder, or a hub id such as Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
            option="--model",
        )
    folder = Path(location).expanduser()
    if not folder.exists():
        raise UsageError(f"the folder {location} does not exist", option="--model")
    if not (folder / "model_index.json").is_file():
        raise UsageError(
            f"{location} has no model_index.json, so it is not a diffusers pipeline", option="--model"
        )


def name_model(text: str) -> NamedModel:
    """The model that `--model` names: NAME, FOLDER, HUB/ID, HUB/ID@REVISION, s3://... or NAME=LOCATION.

    Without NAME=, a model of the catalog has its name there, and any other location its last part.
    """
    if is_remote(text):
        return NamedModel(parse_location(text).name, text)
    name, is_named, location = text.partition("=")
    if not name or (is_named and not location):
        raise UsageError(f"{text!r} is not NAME or NAME=LOCATION", option="--model")
    found = _locate(location or name)
    return NamedModel(name, found.location) if location else found


def _locate(text: str) -> NamedModel:
    shipped = next((name for name in SHIPPED if fold_name(name) == fold_name(text)), None)
    if is_remote(text):
        return NamedModel(parse_location(text).name, text)
    if Path(text).exists():
        return NamedModel(shipped or PurePath(text).name, shipped or text)
    if shipped is not None:
        return NamedModel(shipped, shipped)
    plain, at, revision = text.partition("@")
    if (known := find_known_model(plain)) is not None:
        return NamedModel(known.name, f"{known.hub_id}{at}{revision}")
    return NamedModel(PurePath(plain).name, text)
