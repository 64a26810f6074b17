"""Screening rules by category and language, from TOML files in the package or of the operator."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import chain, zip_longest
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from filmgate.admission.screening.terms import Term
from filmgate.errors import SettingsError, UsageError
from filmgate.jobs import ScreeningAction
from filmgate.settings.wording import explain

_OPTION = "admission.rules_file"


class Category(BaseModel):
    """The action of a category; tenants may override it unless `is_fixed`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: ScreeningAction
    is_fixed: bool = False


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,60}$")
    category: str
    all_of: list[list[str]] = []
    within_letters: int | None = Field(default=None, ge=0, le=1000)
    pattern: str | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    categories: dict[str, Category] = {}
    rules: list[_Rule] = []
    extend: dict[str, list[list[str]]] = {}  # more words for the lists of a rule in another file
    unsplit: list[str] = []  # words whose parts are ordinary words
    harmless: list[str] = []  # phrases in which no word counts


@dataclass(frozen=True, slots=True)
class Rule:
    """Matches a text with the pattern, or with a term of every list.

    With `within_letters`, the terms follow each other in the order of the lists, that close.
    """

    id: str
    category: str
    lists: tuple[frozenset[Term], ...] = ()
    within_letters: int | None = None
    pattern: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules and categories."""

    categories: dict[str, Category]
    rules: tuple[Rule, ...]
    harmless: frozenset[Term] = frozenset()

    def require_changeable(self, name: str, option: str) -> None:
        """Raises UsageError unless a tenant may have another action for this category."""
        if name not in self.categories:
            known = ", ".join(sorted(n for n, category in self.categories.items() if not category.is_fixed))
            raise UsageError(f"no category is named {name[:60]!r}; choose from {known}", option=option)
        if self.categories[name].is_fixed:
            raise UsageError(f"{name} has a fixed action; a tenant cannot change it", option=option)


# Categories of checks in code; a file may override their actions.
_BUILT_IN = {
    "payment_data": Category(action=ScreeningAction.REJECT),
    "contact_data": Category(action=ScreeningAction.FLAG),
    "obfuscation": Category(action=ScreeningAction.FLAG),
    "unscreened": Category(action=ScreeningAction.FLAG),
}


def open_rules(path: str = "") -> RuleSet:
    """The rules of the operator's file or folder, or those in the package. Raises SettingsError."""
    source: Path | Traversable = Path(path) if path else files("filmgate.admission.screening") / "rules"
    try:
        found = [source] if source.is_file() else _toml_files(source)
        texts = {file.name: file.read_text(encoding="utf-8") for file in found}
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{path} cannot be read: {exc}", option=_OPTION) from exc
    if not texts:
        raise SettingsError(f"{path} contains no .toml file", option=_OPTION)
    return _merge({name: _parse(text, name) for name, text in texts.items()})


def _toml_files(folder: Path | Traversable) -> list[Path | Traversable]:
    return sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)


def _parse(text: str, source: str) -> _File:
    try:
        return _File.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as exc:
        raise SettingsError(f"{source}: {exc}", option=_OPTION) from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{source}: {explain(name, first)}", option=_OPTION) from exc


def _merge(documents: dict[str, _File]) -> RuleSet:
    """One set of rules; words of all languages count together, so that mixed languages match too."""
    categories = dict(_BUILT_IN)
    unsplit = {word for document in documents.values() for word in document.unsplit}
    more: dict[str, list[list[list[str]]]] = {}
    for document in documents.values():
        categories |= document.categories
        for rule_id, lists in document.extend.items():
            more.setdefault(rule_id, []).append(lists)
    rules = tuple(
        _compile(rule, source, more.pop(rule.id, []), unsplit)
        for source, document in documents.items()
        for rule in document.rules
    )
    sources, known = ", ".join(documents), set[str]()
    for rule in rules:
        if rule.id in known:
            raise SettingsError(
                f"{sources}: two rules have the id {rule.id}; add words to a rule under [extend]",
                option=_OPTION,
            )
        known.add(rule.id)
        if rule.category not in categories:
            raise SettingsError(
                f"{sources}: rule {rule.id} has the unknown category {rule.category}", option=_OPTION
            )
    if more:
        raise SettingsError(f"{sources}: no rule has the id {min(more)}", option=_OPTION)
    harmless = (
        _to_terms("harmless", source, [document.harmless], unsplit) for source, document in documents.items()
    )
    return RuleSet(categories, rules, frozenset(chain.from_iterable(harmless)))


def _compile(rule: _Rule, source: str, more: list[list[list[str]]], unsplit: set[str]) -> Rule:
    if bool(rule.all_of) == bool(rule.pattern):
        raise SettingsError(f"{source}: rule {rule.id} needs either all_of or pattern", option=_OPTION)
    if any(len(lists) != len(rule.all_of) for lists in more):
        count = len(rule.all_of)
        raise SettingsError(f"{source}: an extension of {rule.id} needs {count} lists", option=_OPTION)
    merged = zip_longest(rule.all_of, *more, fillvalue=[])
    lists = tuple(frozenset(_to_terms(rule.id, source, words, unsplit)) for words in merged)
    try:
        pattern = re.compile(rule.pattern) if rule.pattern else None
    except re.error as exc:
        raise SettingsError(f"{source}: the pattern of {rule.id}: {exc}", option=_OPTION) from exc
    return Rule(rule.id, rule.category, lists, rule.within_letters, pattern)


def _to_terms(rule_id: str, source: str, lists: Iterable[list[str]], unsplit: set[str]) -> Iterable[Term]:
    for words in lists:
        for word in words:
            if "*" in word[:-1] or sum(map(str.isalnum, word)) < 2:
                raise SettingsError(
                    f"{source}: {word!r} in {rule_id} needs two letters, and `*` only at its end",
                    option=_OPTION,
                )
            yield Term(word, may_split=word.removesuffix("*") not in unsplit)
