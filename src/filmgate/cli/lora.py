"""`--lora` of `filmgate generate`: adapters of the installation by name, or any file, hub id or s3:// URL."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.models.adapters import AdapterRegistry

_SCALE = re.compile(r"^(?P<place>.+?)(?::(?P<scale>-?\d*\.?\d+))?$")


def read_adapters(given: list[str], model: str, adapters_file: str) -> "tuple[AdapterRegistry, str | None]":
    """The adapters that `--lora` names, and the request field that chooses them.

    Raises UsageError for a file that does not exist, before a model is loaded.
    """
    from filmgate.models.adapters import AdapterCard, AdapterRegistry, open_adapters
    from filmgate.tenants.base import LOCAL_TENANT

    cards = {card.name: card for card in open_adapters(adapters_file).visible(LOCAL_TENANT)}
    chosen = []
    for text in given:
        found = _SCALE.match(text)
        place, scale = (found["place"], found["scale"]) if found else (text, None)
        name = place
        if place not in cards:
            name = re.sub(r"[+,:\s]", "-", Path(place).stem)
            cards[name] = AdapterCard(name, model, check_place(place))
        chosen.append(f"{name}:{scale}" if scale else name)
    return AdapterRegistry(cards), ",".join(chosen) or None


def check_place(place: str) -> str:
    """The location of an adapter. Raises UsageError for a file that does not exist."""
    from filmgate.models.names import is_hub_file
    from filmgate.models.weights.location import is_remote

    if Path(place).expanduser().exists():
        return str(Path(place).expanduser())
    if is_remote(place) or is_hub_file(place):
        return place
    raise UsageError(
        f"there is no file {place!r}; give a safetensors file, a hub id such as OWNER/NAME, s3://BUCKET/PATH "
        "or a name of models.adapters_file, each with :SCALE if you like",
        option="--lora",
    )
