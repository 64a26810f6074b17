"""Model cards: what each model can render, and initial estimates of its speed."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from filmgate.errors import ModelNotFound, SettingsError
from filmgate.models.limits import ModelLimits

_OPTION = "admission.models_file"


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds per unit of work: `denoise` per step and megapixel-frame, `decode` per megapixel-frame."""

    text: float
    denoise: float
    decode: float
    upload: float


# For a model without a card: the order of magnitude of a small model on a data-centre GPU.
UNKNOWN_RATES = Rates(text=0.5, denoise=0.1, decode=0.1, upload=0.5)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as clients see it."""

    name: str
    owner: str
    created: int
    limits: ModelLimits
    rates: Rates
    aliases: tuple[str, ...] = ()


class ModelRegistry:
    """All available models by name or alias: those in card files and those that live workers serve.

    A card in a file overrides the card a worker announces under the same name.
    """

    def __init__(
        self,
        cards: Iterable[ModelCard],
        default: str,
        read_served: Callable[[], Iterable[ModelCard]] = lambda: (),
    ) -> None:
        self._from_files = tuple(cards)
        self._read_served = read_served
        self._by_name = {alias: card for card in self._from_files for alias in card.aliases}
        self._by_name |= {card.name: card for card in self._from_files}
        if default not in self._by_name:
            raise SettingsError(f"no model card is named {default}", option="admission.default_model")
        self.default = self._by_name[default]

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        served = tuple(card for card in self._read_served() if card.name not in self._by_name)
        return self._from_files + served

    def find(self, name: str | None) -> ModelCard:
        """The card with this name or alias; the default model's for None. Raises ModelNotFound."""
        if name is None:
            return self.default
        card = self._by_name.get(name) or next((each for each in self.cards if each.name == name), None)
        if card is None:
            names = [each.name for each in self.cards]
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"available models: {', '.join(sorted(names))}"
            raise ModelNotFound(f"no model is named {name[:60]!r}; {hint}", option="model")
        return card


def open_registry(
    default: str, extra_file: str = "", read_served: Callable[[], Iterable[ModelCard]] = lambda: ()
) -> ModelRegistry:
    """The cards in the package, those of the operator's file over them, and those live workers announce."""
    cards = read_cards(files("filmgate.models").joinpath("cards.toml").read_text(), "cards.toml")
    if extra_file:
        try:
            cards |= read_cards(Path(extra_file).read_text(), extra_file)
        except (OSError, UnicodeDecodeError) as exc:
            raise SettingsError(f"{extra_file} cannot be read: {exc}", option=_OPTION) from exc
    return ModelRegistry(cards.values(), default, read_served)


_CARDS = TypeAdapter(dict[str, ModelCard], config=ConfigDict(extra="forbid"))


def read_cards(text: str, source: str) -> dict[str, ModelCard]:
    """The cards of a TOML document. Raises SettingsError naming the key that is wrong."""
    try:
        tree = tomllib.loads(text)
        return _CARDS.validate_python({name: _named(name, card) for name, card in tree.items()})
    except tomllib.TOMLDecodeError as exc:
        raise SettingsError(f"{source}: {exc}", option=_OPTION) from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{source}: {key}: {first['msg']}", option=_OPTION) from exc


def _named(name: str, card: object) -> object:
    return {**card, "name": name} if isinstance(card, Mapping) else card
