"""Model cards: what each model can render, read from a data file, one typed card per model."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from filmgate.errors import ModelNotFound, SettingsError
from filmgate.jobs import SourceKind

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Both sides are multiples of `multiple` within [min_side, max_side]; their product is bounded too."""

    default: tuple[int, int]
    multiple: int
    min_side: int
    max_side: int
    max_pixels: int

    def allows(self, width: int, height: int) -> bool:
        sides = (width, height)
        return (
            all(side % self.multiple == 0 and self.min_side <= side <= self.max_side for side in sides)
            and width * height <= self.max_pixels
        )

    def nearest(self, width: int, height: int) -> tuple[int, int]:
        """The allowed size closest to this one, its shape kept as far as the limits let it."""
        shrink = min(1.0, self.max_side / max(width, height), (self.max_pixels / (width * height)) ** 0.5)
        near = (self._snap(width * shrink), self._snap(height * shrink))
        while near[0] * near[1] > self.max_pixels:
            wide = near[0] >= near[1]
            near = (near[0] - self.multiple * wide, near[1] - self.multiple * (not wide))
        return near

    def _snap(self, side: float) -> int:
        steps = round(min(max(side, self.min_side), self.max_side) / self.multiple)
        low, high = -(-self.min_side // self.multiple), self.max_side // self.multiple
        return min(max(steps, low), high) * self.multiple


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Frame counts are `step * k + offset`: a causal decoder yields one frame, then `step` at a time."""

    default: int
    step: int
    offset: int
    min: int
    max: int

    def count(self, seconds: float, fps: int) -> int:
        """The allowed count nearest to this many seconds between the first frame and the last."""
        return self.offset + self.step * round(seconds * fps / self.step)

    def seconds(self, frames: int, fps: int) -> float:
        """What a client calls the length: 33 frames at 16 per second are 2 seconds."""
        return (frames - self.offset) / fps


@dataclass(frozen=True, slots=True)
class Limits(Generic[Number]):
    """A number with a default and bounds."""

    default: Number
    min: Number
    max: Number


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds by unit of work: `denoise` per step and megapixel-frame, `decode` per megapixel-frame."""

    text: float
    denoise: float
    decode: float
    upload: float


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model's limits."""

    name: str
    owner: str
    created: int
    size: SizeLimits
    frames: FrameLimits
    fps: Limits[int]
    steps: Limits[int]
    guidance: Limits[float]
    rates: Rates
    aliases: tuple[str, ...] = ()
    sources: frozenset[SourceKind] = frozenset()


class ModelShelf:
    """Every model that can be asked for, by name or alias: those of the files, and what workers brought."""

    def __init__(
        self,
        cards: Iterable[ModelCard],
        default: str,
        brought: Callable[[], Iterable[ModelCard]] = lambda: (),
    ) -> None:
        self._own = tuple(cards)
        self._brought = brought
        self._by_name = {alias: card for card in self._own for alias in card.aliases}
        self._by_name |= {card.name: card for card in self._own}
        if default not in self._by_name:
            raise SettingsError(f"no model card is named {default}", option="admission.default_model")
        self.default = self._by_name[default]

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        """All of them. What a file says of a model goes before what a worker says."""
        return self._own + tuple(card for card in self._brought() if card.name not in self._by_name)

    def find(self, name: str | None) -> ModelCard:
        """The card of this name, or the default's for None. Raises ModelNotFound."""
        if name is None:
            return self.default
        card = self._by_name.get(name) or next((each for each in self.cards if each.name == name), None)
        if card is None:
            near = get_close_matches(name, [card.name for card in self.cards], n=1, cutoff=0.0)
            raise ModelNotFound(f"there is no such model; the nearest is {near[0]}", option="model")
        return card


def open_shelf(
    default: str, extra: str = "", brought: Callable[[], Iterable[ModelCard]] = lambda: ()
) -> ModelShelf:
    """The shipped cards, with those of the operator's file over them, and what workers bring beside them."""
    shipped = read_cards(files("filmgate.models").joinpath("cards.toml").read_text(), "cards.toml")
    if extra:
        try:
            shipped |= read_cards(Path(extra).read_text(), extra)
        except (OSError, UnicodeDecodeError) as exc:
            raise SettingsError(f"{extra} cannot be read: {exc}", option="admission.models_file") from exc
    return ModelShelf(shipped.values(), default, brought)


_CARDS = TypeAdapter(dict[str, ModelCard], config=ConfigDict(extra="forbid"))


def read_cards(text: str, source: str) -> dict[str, ModelCard]:
    """The cards of a TOML document; raises SettingsError naming the key that is wrong."""
    try:
        tree = tomllib.loads(text)
        return _CARDS.validate_python({name: _named(name, card) for name, card in tree.items()})
    except tomllib.TOMLDecodeError as exc:
        raise SettingsError(f"{source}: {exc}", option="admission.models_file") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{source}: {key}: {first['msg']}", option="admission.models_file") from exc


def _named(name: str, card: object) -> object:
    return {**card, "name": name} if isinstance(card, Mapping) else card
