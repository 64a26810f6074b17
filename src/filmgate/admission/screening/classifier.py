"""The classifier in the package: rules of words and patterns, personal data, hidden characters."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from filmgate.admission.screening.base import Label
from filmgate.admission.screening.folding import (
    folded_text,
    has_bidi_controls,
    has_hidden_characters,
    in_display_order,
    readings,
    visible_text,
)
from filmgate.admission.screening.personal import personal_data
from filmgate.admission.screening.rules import Rule, RuleSet
from filmgate.admission.screening.terms import Term, Terms

_PAYMENT = {"card", "iban"}
Spans = list[tuple[int, int]]


class RulesClassifier:
    """Labels texts by rules, in linear time."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._lists: dict[Term, list[tuple[Rule, int]]] = {}
        for rule in rules.rules:
            for number, terms in enumerate(rule.lists):
                for term in terms:
                    self._lists.setdefault(term, []).append((rule, number))
        self._terms = Terms(self._lists)

    @property
    def name(self) -> str:
        return "rules"

    @property
    def categories(self) -> frozenset[str]:
        return frozenset(self._rules.categories)

    def classify(self, texts: Sequence[str]) -> frozenset[Label]:
        return frozenset(label for text in texts for label in self._labels(text))

    def _labels(self, text: str) -> Iterator[Label]:
        visible = visible_text(text)
        for kind in personal_data(visible):
            yield Label(f"personal.{kind}", "payment_data" if kind in _PAYMENT else "contact_data")
        if has_bidi_controls(text):
            yield Label("obfuscation.bidi", "obfuscation")
        if has_hidden_characters(text):
            yield Label("obfuscation.hidden", "obfuscation")
        folded = folded_text(visible)
        for rule in self._rules.rules:
            if rule.pattern is not None and rule.pattern.search(folded):
                yield Label(rule.id, rule.category)
        yield from self._term_labels(visible)
        if has_bidi_controls(text):
            yield from self._term_labels(visible_text(in_display_order(text)))

    def _term_labels(self, visible: str) -> Iterator[Label]:
        present: dict[str, set[int]] = {}
        for letters in readings(visible, self._terms.alphabet):
            ordered: dict[str, list[Spans]] = {}
            for match in self._terms.find(letters):
                for rule, number in self._lists[match.term]:
                    if rule.within_letters is None:
                        present.setdefault(rule.id, set()).add(number)
                    else:
                        spans = ordered.setdefault(rule.id, [[] for _ in rule.lists])
                        spans[number].append((match.start, match.end))
            for rule in self._rules.rules:
                if rule.id in ordered and _follow(ordered[rule.id], rule.within_letters or 0):
                    yield Label(rule.id, rule.category)
        for rule in self._rules.rules:
            if len(present.get(rule.id, ())) == len(rule.lists) > 0:
                yield Label(rule.id, rule.category)


def _follow(lists: list[Spans], within_letters: int) -> bool:
    """Whether one span of each list follows one of the list before, in order and close enough."""
    ends = [end for _, end in lists[0]]
    for spans in lists[1:]:
        ends.sort()
        ends = [end for start, end in spans if _is_near(ends, start, within_letters)]
    return bool(ends)


def _is_near(ends: list[int], start: int, within_letters: int) -> bool:
    index = bisect_left(ends, start - within_letters)
    return index < len(ends) and ends[index] <= start
