"""LoRA adapters: which exist, for which model and tenant, and how a request names them.

A request names adapters in `lora` (`lightning`, `style:0.8`, `lightning,style:0.8`) or behind its model
(`wan2.1-14b+lightning`). The operator's file `models.adapters_file` has one table per adapter.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from filmgate.errors import SettingsError, UnsupportedValue
from filmgate.jobs import TenantId
from filmgate.models.requests import VideoRequest
from filmgate.models.tables import read_tables, read_text

MAX_ADAPTERS = 4
MAX_SCALE = 4.0
_OPTION = "models.adapters_file"


@dataclass(frozen=True, slots=True)
class AdapterCard:
    """One adapter. `location` is a safetensors file or a folder with one, here, on the hub or in S3.

    `low_noise_location` has the same for the second expert of a model that has two, as Wan 2.2 14B does.
    `steps` and `guidance` are the defaults of requests that use it: few-step adapters need their own. Only
    `tenant` sees it, if one is named.
    """

    name: str
    model: str
    location: str
    scale: Annotated[float, Field(ge=-MAX_SCALE, le=MAX_SCALE)] = 1.0
    steps: Annotated[int, Field(ge=1)] | None = None
    guidance: Annotated[float, Field(ge=0)] | None = None
    tenant: str | None = None
    low_noise_location: str | None = None

    @property
    def locations(self) -> tuple[str, ...]:
        """One location for each expert that the adapter changes."""
        return (
            (self.location,) if self.low_noise_location is None else (self.location, self.low_noise_location)
        )


@dataclass(frozen=True, slots=True)
class ChosenAdapter:
    """An adapter in a request, with its weight."""

    name: str
    scale: float | None = None


class AdapterRegistry:
    """The adapters of an installation."""

    def __init__(self, cards: Mapping[str, AdapterCard] | None = None) -> None:
        self._cards = dict(cards or {})

    def visible(self, tenant_id: TenantId) -> tuple[AdapterCard, ...]:
        """The adapters that a tenant can use: shared adapters and its own."""
        return tuple(card for card in self._cards.values() if card.tenant in (None, tenant_id))

    def find(self, name: str) -> AdapterCard:
        """The adapter, for a worker. Raises UnsupportedValue."""
        if name not in self._cards:
            raise UnsupportedValue(f"no adapter is named {name[:60]!r}", option="lora")
        return self._cards[name]

    def resolve(
        self, request: VideoRequest, tenant_id: TenantId, name_model: Callable[[str], str] = str
    ) -> VideoRequest:
        """The request with its adapters checked and only in `lora`, and with their steps and guidance.

        `name_model` returns the name of a model from an alias or another spelling. Raises UnsupportedValue,
        for an adapter of another tenant as for one that does not exist.
        """
        base, _, named = (request.model or "").partition("+")
        if not named and request.lora is None:
            return request
        chosen = parse_adapters(f"{named.replace('+', ',')},{request.lora or ''}")
        if not chosen:
            return replace(request, lora=None)
        known = {card.name: card for card in self.visible(tenant_id)}
        if unknown := [each.name for each in chosen if each.name not in known]:
            hint = f"available adapters: {', '.join(sorted(known))}" if known else "there are none"
            raise UnsupportedValue(f"no adapter is named {unknown[0][:60]!r}; {hint}", option="lora")
        cards = [known[each.name] for each in chosen]
        model = name_model(base) if base else cards[0].model
        if other := next((card for card in cards if card.model != model), None):
            raise UnsupportedValue(
                f"the adapter {other.name} belongs to {other.model}, not to {model}", option="lora"
            )
        steps = next((card.steps for card in cards if card.steps), None)
        guidance = next((card.guidance for card in cards if card.guidance is not None), None)
        scales = [each.scale if each.scale is not None else known[each.name].scale for each in chosen]
        return replace(
            request,
            model=model,
            lora=",".join(f"{card.name}:{scale:g}" for card, scale in zip(cards, scales, strict=True)),
            steps=request.steps if request.steps is not None else steps,
            guidance=request.guidance if request.guidance is not None else guidance,
        )


def parse_adapters(text: str) -> tuple[ChosenAdapter, ...]:
    """The adapters in `NAME[:SCALE],...`. Raises UnsupportedValue."""
    chosen = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, scale = part.partition(":")
        try:
            value = float(scale) if scale else None
        except ValueError as exc:
            raise UnsupportedValue(f"{scale[:20]!r} is not the scale of an adapter", option="lora") from exc
        if value is not None and not -MAX_SCALE <= value <= MAX_SCALE:
            raise UnsupportedValue(
                f"the scale of {name[:60]} must be between {-MAX_SCALE:g} and {MAX_SCALE:g}", option="lora"
            )
        chosen.append(ChosenAdapter(name, value))
    if len(chosen) > MAX_ADAPTERS or len({each.name for each in chosen}) < len(chosen):
        raise UnsupportedValue(f"name at most {MAX_ADAPTERS} adapters, each once", option="lora")
    return tuple(chosen)


def open_adapters(file: str) -> AdapterRegistry:
    """The adapters in the operator's file. Raises SettingsError that names the adapter and the field."""
    if not file:
        return AdapterRegistry()
    cards = read_tables(AdapterCard, read_text(file, _OPTION), file, _OPTION)
    if wrong := [name for name in cards if re.search("[+,:]", name)]:
        raise SettingsError(f"{file}: the name {wrong[0]} must not contain + , or :", option=_OPTION)
    return AdapterRegistry(cards)
