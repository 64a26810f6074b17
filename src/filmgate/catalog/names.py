"""One vocabulary of names: case, spaces and hyphens do not matter, and a hub id is another name of its model.

`RTX-4090`, `rtx4090` and `NVIDIA GeForce RTX 4090` are one GPU; `wan2.1-t2v-1.3b` and
`Wan-AI/Wan2.1-T2V-1.3B-Diffusers` are one model, for the planner, the command line and the API alike.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_MAKERS = re.compile(r"\b(nvidia|geforce|tesla)\b")
_HUB_SUFFIX = "-diffusers"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A video model of the catalog: its name and its id on the hub."""

    name: str
    hub_id: str


def fold_name(name: str) -> str:
    """The name without what does not distinguish names. Dots stay: 1.3b is not 13b."""
    return re.sub(r"[^a-z0-9.]", "", _MAKERS.sub("", name.lower()))


def find_known_model(name: str) -> KnownModel | None:
    """The catalog's model with this name or hub id, with or without its owner and the ending `-Diffusers`."""
    return _known_models().get(fold_name(name))


def canonical_name(name: str) -> str:
    """Equal for all names of one model."""
    known = find_known_model(name)
    return known.name if known else fold_name(name)


_NO_MODEL = {
    "svdxl": "Stable Video Diffusion XL does not exist; Stability AI released SVD and SVD-XT (25 frames of "
    "1024x576 from an image); use --model svd-xt",
    "stablevideodiffusionxl": "Stable Video Diffusion XL does not exist; use --model svd-xt",
}


def explain_unknown(name: str) -> str | None:
    """What is wrong with a name that is often given and names no model; None for other names."""
    return _NO_MODEL.get(fold_name(name.rpartition("/")[2]))


@cache
def _known_models() -> dict[str, KnownModel]:
    """Only names are read here, because the whole catalog takes longer to parse."""
    text = files("filmgate.catalog").joinpath("data/video_models.json").read_bytes()
    found: dict[str, KnownModel] = {}
    for name, row in json.loads(text)["models"].items():
        if hub_id := row.get("repo"):
            last = hub_id.lower().rpartition("/")[2]
            for alias in (name, hub_id, last, last.removesuffix(_HUB_SUFFIX)):
                found.setdefault(fold_name(alias), KnownModel(name, hub_id))
    return found
