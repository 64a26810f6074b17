"""Finds many terms in a text at once: a trie, walked from the start of every word.

The time is linear in the text: a walk ends after the longest term. A term is found in spite of separators
inside it, digits and signs in place of letters, repeated letters, and other terms next to it without a space.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from filmgate.admission.screening.folding import Letters, term_letters, without_repeats

_CHOICES = {
    "0": "o", "1": "il", "2": "z", "3": "e", "4": "a", "5": "s", "6": "gb", "7": "t", "8": "b", "9": "g",
    "@": "a", "$": "s", "!": "il", "+": "t", "|": "il", "€": "e", "£": "l", "*": "aeiou",
}  # fmt: skip
_SIGNS_FOR = {
    letter: "".join(sign for sign, letters in _CHOICES.items() if letter in letters)
    for letter in "".join(_CHOICES.values())
}
# What a reader takes for a letter only beside real ones.
_UNLIKE = frozenset("0123456789*")
_MIN_SINGLE_LETTERS = 4  # a term without its repeated letters
_MIN_CHAINED_LETTERS = 4  # a term with another one right behind it
_MIN_SPELLED_LETTERS = 3  # "s p e l l e d"
_MIN_SPLIT_LETTERS = 5  # "spl it"


@dataclass(frozen=True, slots=True)
class Term:
    """A word or phrase: `*` at its end allows any ending.

    `may_split` is False for a word whose parts are words too, such as min-or.
    """

    text: str
    may_split: bool = True

    @property
    def has_any_ending(self) -> bool:
        return self.text.endswith("*")


class Match(NamedTuple):
    """Where a term is: from letter `start` to letter `end`, exclusive."""

    term: Term
    start: int
    end: int


@dataclass(slots=True)
class _Node:
    children: dict[str, "_Node"] = field(default_factory=dict)
    ends: list["_Spelling"] = field(default_factory=list)


class _Spelling(NamedTuple):
    term: Term
    letters: str
    spaces: int


class Terms:
    """A set of terms."""

    def __init__(self, terms: Iterable[Term]) -> None:
        self._root = _Node()
        self._starts: set[str] = set()
        self.alphabet: set[str] = set()
        for term in terms:
            for spelling in _spellings(term):
                self._insert(spelling)

    def find(self, letters: Letters) -> list[Match]:
        """Every match in one reading of a text."""
        found: list[tuple[Match, bool]] = []
        text = letters.text
        starts = [index for index, border in enumerate(letters.borders) if border]
        known = set(starts)
        for start in starts:  # grows: a term may follow another without a space
            if text[start : start + 3] not in self._starts and text[start : start + 2] not in self._starts:
                continue
            for match, is_whole in self._walk(letters, start):
                found.append((match, is_whole))
                may_chain = match.end - start >= _MIN_CHAINED_LETTERS and not is_whole
                if may_chain and match.end not in known:
                    known.add(match.end)
                    starts.append(match.end)
        return _connected(found)

    def _insert(self, spelling: _Spelling) -> None:
        node = self._root
        for char in spelling.letters:
            node = node.children.setdefault(char, _Node())
        node.ends.append(spelling)
        self.alphabet.update(spelling.letters)
        self._starts.add(spelling.letters[:3])
        starts = map("".join, product(*(char + _SIGNS_FOR.get(char, "") for char in spelling.letters[:3])))
        self._starts.update(start for start in starts if not _UNLIKE.issuperset(start))

    def _walk(self, letters: Letters, start: int) -> Iterator[tuple[Match, bool]]:
        """Matches from here, and whether each ends where a word may end."""
        text, nodes, index = letters.text, [self._root], start
        while nodes and index < len(text):
            char = text[index]
            index += 1
            choices = char + _CHOICES.get(char, "")
            nodes = [node.children[c] for node in nodes for c in choices if c in node.children]
            for node in nodes:
                for spelling in node.ends:
                    if _is_readable(spelling, letters, start, index):
                        is_whole = spelling.term.has_any_ending or letters.is_border(index)
                        yield Match(spelling.term, start, index), is_whole


def _spellings(term: Term) -> Iterator[_Spelling]:
    plain = term_letters(term.text.removesuffix("*"))
    spaces = plain.count_spaces(0, len(plain.text))
    yield _Spelling(term, plain.text, spaces)
    single = without_repeats(plain).text
    if single != plain.text and len(single) >= _MIN_SINGLE_LETTERS:
        yield _Spelling(term, single, spaces)


def _is_readable(spelling: _Spelling, letters: Letters, start: int, end: int) -> bool:
    """Whether a reader recognises the term: enough real letters, and not split into ordinary words."""
    length = end - start
    written = letters.text[start:end]
    if written != spelling.letters:
        replaced = sum(
            char in _UNLIKE for char, letter in zip(written, spelling.letters, strict=True) if char != letter
        )
        if 2 * replaced > length or length < _MIN_SPELLED_LETTERS:
            return False
    spaces = letters.count_spaces(start, end)
    if spaces <= spelling.spaces:
        return True
    if not letters.is_border(end):
        return False
    is_spelled = spaces == length - 1 and length >= _MIN_SPELLED_LETTERS
    return is_spelled or (spelling.term.may_split and length >= _MIN_SPLIT_LETTERS)


def _connected(found: list[tuple[Match, bool]]) -> list[Match]:
    """The matches that end a word, or are followed without a space by one that does."""
    good_starts: set[int] = set()
    kept = []
    for match, is_whole in sorted(found, key=lambda pair: -pair[0].end):
        if is_whole or (match.end in good_starts and match.end - match.start >= _MIN_CHAINED_LETTERS):
            good_starts.add(match.start)
            kept.append(match)
    return kept
