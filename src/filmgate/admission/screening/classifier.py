"""The classifier in the package: rules of words and patterns, personal data, hidden characters."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from filmgate.admission.screening.base import Label
from filmgate.admission.screening.rules import Rule, RuleSet
from filmgate.admission.screening.terms import (
    Match,
    Term,
    Terms,
    folded_text,
    in_display_order,
    visible_text,
)

_PAYMENT = {"card", "iban"}
# Bidirectional control characters change the reading order.
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
# Invisible characters between two Latin letters hide words; in Persian, Indic scripts and emoji they are
# legitimate.
_HIDDEN = re.compile(
    "(?<=[A-Za-z])[\u00ad\u034f\u115f\u1160\u180b-\u180f\u200b-\u200f\u2060-\u2064\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\U000e0000-\U000e0fff]+(?=[A-Za-z])"
)
Spans = list[tuple[int, int]]
_CARD = re.compile(r"(?<![\d.])(?:\d[ \-]?){12,18}\d(?![\d.])")
_IBAN = re.compile(r"\b([A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?)\b", re.IGNORECASE)
# One character before the sign is enough, and repeats are bounded: the time stays linear.
_EMAIL = re.compile(r"(?<=[\w+-])@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}\b")
# International with a plus sign, or a national form that groups its digits.
_PHONE = re.compile(
    r"(?<![\w+])(?:\+\d{1,3}(?:[ .\-/()]{0,2}\d){6,13}|\(\d{2,5}\)[ .\-/]?\d{3,4}[ .\-/]?\d{3,5}"
    r"|\d{3}[ .\-]\d{3}[ .\-]\d{4})(?![\w])"
)
# First digits of card networks; most random numbers that pass Luhn have others.
_NETWORKS = re.compile(r"4|5[1-5]|2[2-7]|3[4-9]|30|6")
# IBAN lengths of the most common countries; others are checked by mod 97 only.
_IBAN_LENGTHS = {
    "AT": 20, "BE": 16, "BG": 22, "CH": 21, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "EE": 20, "ES": 24,
    "FI": 18, "FR": 27, "GB": 22, "GR": 27, "HR": 21, "HU": 28, "IE": 22, "IT": 27, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "MT": 31, "NL": 18, "NO": 15, "PL": 28, "PT": 25, "RO": 24, "SE": 24, "SI": 19,
    "SK": 24, "TR": 26,
}  # fmt: skip


class RulesClassifier:
    """Labels texts by rules, in linear time."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._lists: dict[Term, list[tuple[Rule, int]]] = {}
        for rule in rules.rules:
            for number, terms in enumerate(rule.lists):
                for term in terms:
                    self._lists.setdefault(term, []).append((rule, number))
        self._terms = Terms([*self._lists, *rules.harmless])

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
        has_bidi = _BIDI.search(text) is not None
        if has_bidi:
            yield Label("obfuscation.bidi", "obfuscation")
        if _HIDDEN.search(text):
            yield Label("obfuscation.hidden", "obfuscation")
        folded = folded_text(visible)
        for rule in self._rules.rules:
            if rule.pattern is not None and rule.pattern.search(folded):
                yield Label(rule.id, rule.category)
        yield from self._term_labels(visible)
        if has_bidi:
            yield from self._term_labels(visible_text(in_display_order(text)))

    def _term_labels(self, visible: str) -> Iterator[Label]:
        present: dict[str, set[int]] = {}
        for matches in self._terms.search(visible):
            ordered: dict[str, list[Spans]] = {}
            for match in self._without_harmless(matches):
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

    def _without_harmless(self, matches: Sequence[Match]) -> Iterator[Match]:
        """The matches outside harmless phrases."""
        letters: set[int] = set()
        for match in matches:
            if match.term in self._rules.harmless:
                letters.update(range(match.start, match.end))
        return (match for match in matches if not letters.issuperset((match.start, match.end - 1)))


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


def personal_data(text: str) -> tuple[str, ...]:
    """The kinds of personal data found: card, iban, email, phone."""
    found = []
    if any(is_card_number(match[0]) for match in _CARD.finditer(text)):
        found.append("card")
    if any(is_iban(match[0]) for match in _IBAN.finditer(text)):
        found.append("iban")
    if _EMAIL.search(text):
        found.append("email")
    if _PHONE.search(text):
        found.append("phone")
    return tuple(found)


def is_card_number(text: str) -> bool:
    """13 to 19 digits that pass Luhn and start like a card number."""
    digits = [int(char) for char in text if char.isdigit()]
    if not 13 <= len(digits) <= 19 or not _NETWORKS.match("".join(map(str, digits))):
        return False
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def is_iban(text: str) -> bool:
    """Country, check digits and length of an IBAN agree (ISO 13616, mod 97)."""
    iban = re.sub(r"\s", "", text).upper()
    if not 15 <= len(iban) <= 34 or not iban.isascii():
        return False
    if len(iban) != _IBAN_LENGTHS.get(iban[:2], len(iban)):
        return False
    return int("".join(str(int(char, 36)) for char in iban[4:] + iban[:4])) % 97 == 1
