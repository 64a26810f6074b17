"""Model cards: what each model can render, and initial estimates of its speed."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from types import MappingProxyType

from filmgate.catalog.names import canonical_name
from filmgate.errors import (
    FilmgateError,
    ModelLoading,
    ModelNotFound,
    ModelNotServed,
    SettingsError,
    UnsupportedValue,
)
from filmgate.jobs import VideoSpec
from filmgate.models.limits import ModelLimits
from filmgate.models.tables import read_tables, read_text

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
    subjects: tuple[str, ...] = ()  # everything it can show; empty: anything
    is_distilled: bool = False
    version: str = ""  # SHA-256 of the weights that a worker has loaded

    def warnings(self, spec: VideoSpec) -> list[str]:
        """One sentence for each way in which the clip will differ from what the request expects."""
        found = []
        words = set(re.findall(r"[a-z]+", spec.prompt.lower()))
        known = {subject + ending for subject in self.subjects for ending in ("", "s", "es")}
        if self.subjects and words.isdisjoint(known):
            found.append(
                f"{self.name} can show only {len(self.subjects)} objects ({', '.join(self.subjects)}), and "
                "the prompt names none of them; name one, or use a larger model"
            )
        if self.is_distilled and spec.guidance is not None and spec.guidance > 1:
            found.append(
                f"{self.name} is distilled for guidance 1; guidance {spec.guidance:g} makes the clip worse"
            )
        return found


@dataclass(frozen=True, slots=True)
class ServedModels:
    """What workers serve now: `cards` they announce, `names` of all models they serve or are loading.

    The models in `absent` had a worker before. Those in `cold` (`*`: all) may scale from zero, and keep their
    card.
    """

    cards: tuple[ModelCard, ...] = ()
    names: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    cold: frozenset[str] = frozenset()


class ModelRegistry:
    """All available models by name or alias: those in card files and those that live workers serve.

    A card in a file overrides the card a worker announces under the same name. `aliases` are further names;
    None stands for the default model.
    """

    def __init__(
        self,
        cards: Iterable[ModelCard],
        default: str,
        read_served: Callable[[], ServedModels] = ServedModels,
        aliases: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        self._from_files = tuple(cards)
        self._default = default
        self._read_served = read_served
        self._aliases = aliases
        self._by_name = {alias: card for card in self._from_files for alias in card.aliases}
        self._by_name |= {card.name: card for card in self._from_files}

    @property
    def default(self) -> ModelCard:
        """The configured default model, or a served one while no worker serves it. Raises ModelNotServed.

        While there is no worker at all, models that may scale from zero count as served.
        """
        served = self._read_served()
        names, configured = served.names or served.cold, self.get(self._default)
        if configured is not None and (not names or not names.isdisjoint({configured.name, "*"})):
            return configured
        if configured is None and self._default in served.names:
            raise _loading(self._default)
        others = (card for card in self.cards if card.name in names)
        if (card := next(others, None) or configured) is None:
            raise ModelNotServed(
                f"no worker serves the default model {self._default}; run `filmgate worker --model "
                f"{self._default}` or set admission.default_model"
            )
        return card

    @property
    def cards(self) -> tuple[ModelCard, ...]:
        served = tuple(card for card in self._read_served().cards if card.name not in self._by_name)
        return self._from_files + served

    def find(self, name: str | None) -> ModelCard:
        """The card with this name or alias; the default model's for None.

        Raises ModelNotFound, and ModelNotServed while only a worker that is loading knows the limits.
        """
        if name is None:
            return self.default
        card = self.get(name)
        if card is None and name in self._aliases:
            return self.find(self._aliases[name])
        if card is None:
            raise self._no_card(name)
        return card

    def _no_card(self, name: str) -> FilmgateError:
        served, wanted = self._read_served(), canonical_name(name)
        if wanted in map(canonical_name, served.names):
            return _loading(name)
        if wanted in map(canonical_name, served.absent | served.cold - {"*"}):
            return ModelNotServed(
                f"no worker serves {name}, so its limits are not known; start one with "
                f"`filmgate worker --model {name}`, or add a card with admission.models_file"
            )
        names = [each.name for each in self.cards]
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"available models: {', '.join(sorted(names))}"
        return ModelNotFound(f"no model is named {name[:60]!r}; {hint}", option="model")

    def is_default(self, card: ModelCard) -> bool:
        """Whether requests that name no model use this one."""
        try:
            return self.default.name == card.name
        except ModelNotServed:
            return False

    def is_served(self, card: ModelCard) -> bool:
        """Whether a worker serves the model, or is loading it."""
        return card.name in self._read_served().names

    def aliases_of(self, card: ModelCard) -> list[str]:
        """All other names of a model."""
        meant = {card.name, None} if self.is_default(card) else {card.name}
        aliases = (alias for alias, name in self._aliases.items() if name in meant)
        return [*card.aliases, *(alias for alias in aliases if self.get(alias) is None)]

    def get(self, name: str) -> ModelCard | None:
        """The card by its exact name, else by any spelling or the hub id of a catalog model.

        None for a model that no worker serves any more, or not yet again: its videos remain.
        """
        if name in self._by_name:
            return self._by_name[name]
        cards, wanted = self.cards, canonical_name(name)
        exact = (card for card in cards if card.name == name)
        return next(exact, None) or next((c for c in cards if canonical_name(c.name) == wanted), None)


def _loading(model: str) -> ModelLoading:
    return ModelLoading(f"a worker is loading {model}; try again when it is ready")


def parse_aliases(text: str) -> dict[str, str | None]:
    """The setting `admission.model_aliases`: `NAME` means the default model, `NAME=MODEL` that model.

    Raises SettingsError for an alias without a name, and for aliases that refer to each other in a circle.
    """
    pairs = (entry.partition("=") for entry in text.split(",") if entry.strip())
    aliases = {alias.strip(): model.strip() or None for alias, _, model in pairs}
    for alias, model in aliases.items():
        meant, seen = model, {alias}
        while meant in aliases and meant not in seen:
            seen.add(meant)
            meant = aliases[meant]
        if not alias or meant in seen:
            raise SettingsError(f"the alias {alias!r} names no model", option="admission.model_aliases")
    return aliases


def open_registry(
    default: str,
    extra_file: str = "",
    read_served: Callable[[], ServedModels] = ServedModels,
    aliases: Mapping[str, str | None] = MappingProxyType({}),
) -> ModelRegistry:
    """The built-in cards, overridden by the operator's file, and the cards that live workers announce."""
    cards = read_cards(files("filmgate.models").joinpath("cards.toml").read_text(), "cards.toml")
    if extra_file:
        cards |= read_cards(read_text(extra_file, _OPTION), extra_file)
    return ModelRegistry(cards.values(), default, read_served, aliases)


def find_card(model: str, models_file: str) -> ModelCard | None:
    """The card of a model in the package or in the operator's file; None for a folder or a hub id."""
    cards, wanted = open_registry(model, models_file).cards, canonical_name(model)
    return next((card for card in cards if canonical_name(card.name) == wanted), None)


def read_cards(text: str, source: str) -> dict[str, ModelCard]:
    """The cards of a TOML document. Raises SettingsError naming the key that is wrong."""
    cards = read_tables(ModelCard, text, source, _OPTION)
    for name, card in cards.items():
        try:
            card.limits.check_defaults()
        except UnsupportedValue as exc:
            raise SettingsError(f"{source}: {name}.limits.{exc.option}: {exc}", option=_OPTION) from exc
    return cards
