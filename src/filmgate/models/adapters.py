"""LoRA adapters: which exist, for which model and tenant, and how a request names them.

A request names adapters in `lora` (`lightning`, `style:0.8`, `lightning,style:0.8`) or behind its model
(`wan2.1-14b+lightning`). The operator's file `models.adapters_file` has one table per adapter.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from filmgate.errors import SettingsError, UnsupportedValue
from filmgate.jobs import TenantId
from filmgate.models.requests import VideoRequest

MAX_ADAPTERS = 4
MAX_SCALE = 4.0
_OPTION = "models.adapters_file"


@dataclass(frozen=True, slots=True)
class AdapterCard:
    """One adapter. `location` is a safetensors file or a folder with one, here, on the hub or in S3.

    `steps` and `guidance` are the defaults of requests that use it: few-step adapters need their own. Only
    `tenant` sees it, if one is named.
    """

    name: str
    model: str
    location: str
    scale: float = 1.0
    steps: int | None = None
    guidance: float | None = None
    tenant: str | None = None


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
        """The adapters that a tenant can use: those of everybody, and its own."""
        return tuple(card for card in self._cards.values() if card.tenant in (None, tenant_id))

    def find(self, name: str) -> AdapterCard:
        """The adapter, for a worker. Raises UnsupportedValue."""
        if name not in self._cards:
            raise UnsupportedValue(f"no adapter is named {name[:60]!r}", option="lora")
        return self._cards[name]

    def resolve(self, request: VideoRequest, tenant_id: TenantId) -> VideoRequest:
        """The request with its adapters checked and in `lora` alone, and with their steps and guidance.

        Raises UnsupportedValue; an adapter of another tenant is answered like one that does not exist.
        """
        base, _, named = (request.model or "").partition("+")
        texts = [text for text in (named.replace("+", ","), request.lora or "") if text]
        if not texts:
            return request
        chosen = parse_adapters(",".join(texts))
        known = {card.name: card for card in self.visible(tenant_id)}
        if unknown := [each.name for each in chosen if each.name not in known]:
            hint = f"available adapters: {', '.join(sorted(known))}" if known else "there are none"
            raise UnsupportedValue(f"no adapter is named {unknown[0][:60]!r}; {hint}", option="lora")
        cards = [known[each.name] for each in chosen]
        model = base or request.model or cards[0].model
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
            raise UnsupportedValue(f"the scale of {name[:60]} must be at most {MAX_SCALE:g}", option="lora")
        chosen.append(ChosenAdapter(name, value))
    if len(chosen) > MAX_ADAPTERS or len({each.name for each in chosen}) < len(chosen):
        raise UnsupportedValue(f"name at most {MAX_ADAPTERS} adapters, each once", option="lora")
    return tuple(chosen)


def open_adapters(file: str) -> AdapterRegistry:
    """The adapters in the operator's file. Raises SettingsError that names the adapter and the field."""
    if not file:
        return AdapterRegistry()
    try:
        tables = tomllib.loads(Path(file).expanduser().read_text())
    except (OSError, tomllib.TOMLDecodeError) as exc:
        raise SettingsError(f"{file} cannot be read: {exc}", option=_OPTION) from exc
    return AdapterRegistry({name: _read_card(name, table) for name, table in tables.items()})


def _read_card(name: str, table: object) -> AdapterCard:
    known = {field.name for field in fields(AdapterCard)} - {"name"}
    if not isinstance(table, dict) or not {"model", "location"} <= table.keys() <= known:
        raise SettingsError(
            f"the adapter {name} needs model and location, and may have {', '.join(sorted(known))}",
            option=_OPTION,
        )
    if "+" in name or "," in name or ":" in name:
        raise SettingsError(f"the name {name} must not contain + , or :", option=_OPTION)
    return AdapterCard(name, **table)
