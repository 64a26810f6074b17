"""Screening rules by category, from a TOML file in the package or of the operator."""

import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from filmgate.errors import SettingsError
from filmgate.jobs import ScreeningAction


class _Category(BaseModel):
    model_config = ConfigDict(extra="forbid")

    action: ScreeningAction
    is_fixed: bool = False


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,60}$")
    category: str
    all_of: list[list[str]] = []
    pattern: str | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    categories: dict[str, _Category]
    rules: list[_Rule] = []


@dataclass(frozen=True, slots=True)
class Category:
    """The action of a category; tenants may override it unless `is_fixed`."""

    action: ScreeningAction
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """Matches a text that contains every pattern."""

    id: str
    category: str
    patterns: tuple[re.Pattern[str], ...]

    def matches(self, text: str) -> bool:
        return all(pattern.search(text) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules and categories."""

    categories: dict[str, Category]
    rules: tuple[Rule, ...]


def open_rules(path: str = "") -> RuleSet:
    """The operator's rules, or those in the package. Raises SettingsError."""
    source = Path(path) if path else None
    try:
        text = source.read_text() if source else _shipped()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{path} cannot be read: {exc}", option="admission.rules_file") from exc
    return read_rules(text, path or "rules.toml")


def read_rules(text: str, source: str) -> RuleSet:
    """The rules of a TOML document."""
    try:
        tree = _File.model_validate(tomllib.loads(text))
        rules = tuple(_compile(rule) for rule in tree.rules)
    except (tomllib.TOMLDecodeError, ValidationError, re.error) as exc:
        raise SettingsError(f"{source}: {exc}", option="admission.rules_file") from exc
    for rule in rules:
        if rule.category not in tree.categories:
            raise SettingsError(
                f"{source}: rule {rule.id} has the unknown category {rule.category}",
                option="admission.rules_file",
            )
    categories = {name: Category(entry.action, entry.is_fixed) for name, entry in tree.categories.items()}
    return RuleSet(_BUILT_IN | categories, rules)


# Categories of checks in code; a file may override their actions.
_BUILT_IN = {
    "payment_data": Category(ScreeningAction.REJECT),
    "contact_data": Category(ScreeningAction.FLAG),
    "obfuscation": Category(ScreeningAction.FLAG),
}


def _shipped() -> str:
    return files("filmgate.admission.screening").joinpath("rules.toml").read_text()


def _compile(rule: _Rule) -> Rule:
    if bool(rule.all_of) == bool(rule.pattern):
        raise re.error(f"rule {rule.id} needs either all_of or pattern")
    sources = [rule.pattern] if rule.pattern else [_any_word(words) for words in rule.all_of]
    return Rule(rule.id, rule.category, tuple(re.compile(source) for source in sources))


def _any_word(words: list[str]) -> str:
    """Whole words, `*` for any ending."""
    forms = (re.escape(word).replace(r"\*", r"\w*").replace(r"\ ", r"\s+") for word in words)
    return rf"(?<!\w)(?:{'|'.join(forms)})(?!\w)"
