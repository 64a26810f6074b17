"""Finds many terms in the letters that a reader sees, in linear time.

A text is reduced to its letters first. Only the rules see the result; the model gets what the client wrote.
Every character becomes at most four: the few that Unicode expands to whole words become a space.

The terms are a trie, walked from the start of every word until after the longest term. A term is found in
spite of separators inside it, digits and signs in place of letters, repeated letters, and other terms next to
it without a space.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from filmgate.admission.screening.lookalikes import TO_LATIN

# Marks, format characters, surrogates and private use: not seen as letters.
_UNSEEN_CATEGORIES = frozenset({"Mn", "Me", "Mc", "Cf", "Cs", "Co", "Cn"})
# Letters by category, but invisible: the Hangul fillers.
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
# Arabic phrases and Katakana words in one character, which expand to up to 18.
_PHRASES = frozenset(
    map(chr, [*range(0xFDF0, 0xFDFE), *range(0x3300, 0x3358), 0x321D, 0x321E, 0x327C, 0x33AE, 0x33AF])
)
_REVERSED = re.compile("\u202e([^\u202c-\u202e\n]*)")

# Separates words without white space, such as at a change of case.
_BORDER = "\x00"
_NOT_HANGUL = re.compile("[^\uac00-\ud7a3]+")
_SIGN = re.compile(r"[@$€!+|£*]")
_DIGIT_IN_WORD = re.compile(r"[^\W\d_]\d|\d[^\W\d_]")
_REPEATED = re.compile(r"(.)\1")
_CASE_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")
# With the signs that stand for letters; `*` between two letters hides a vowel. At most three signs in a row:
# a longer repeat before a letter takes quadratic time.
_WORD_WITH_SIGNS = re.compile(r"[@$€!+|]{0,3}[^\W_](?:[^\W_]|[@$€!+|£]|\*(?=[^\W_]))*|[@$€]")
_WORD_WITH_INNER_SIGNS = re.compile(r"[@$€!+|]{0,3}[^\W_](?:[@$€!+|£*]{0,3}[^\W_])*")
_WORD_WITHOUT_DIGITS = re.compile(r"[^\W\d_]+")
_LATIN = re.compile("[a-z]")
_NOT_LATIN = re.compile("[^a-z0-9]+")
# Scripts without spaces: every character may start or end a word.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1100-\u11ff\u2e80-\ufaff\U00020000-\U0003ffff]")

_INSIDE, _PUNCTUATION, _SPACE = 0, 1, 2
# Letters in circles, squares and flags, and currency signs, are symbols, not parts of words.
_SYMBOLS = {code: latin for code, latin in TO_LATIN.items() if unicodedata.category(chr(code))[0] in "SP"}
_CHOICES = {
    "0": "o", "1": "il", "2": "z", "3": "e", "4": "a", "5": "s", "6": "gb", "7": "t", "8": "b", "9": "g",
    "@": "a", "$": "s", "!": "il", "+": "t", "|": "il", "€": "e", "£": "l", "*": "aeiou",
}  # fmt: skip
_SIGNS_FOR = {
    letter: "".join(sign for sign, letters in _CHOICES.items() if letter in letters)
    for letter in "".join(_CHOICES.values())
}
# Characters that a reader takes for letters only next to real ones.
_UNLIKE = frozenset("0123456789*")
_MIN_SINGLE_LETTERS = 4  # a term without its repeated letters
_MIN_CHAINED_LETTERS = 4  # a term with another one right behind it
_MIN_SPELLED_LETTERS = 3  # "s p e l l e d"
_MIN_SPLIT_LETTERS = 5  # "spl it"


@dataclass(frozen=True, slots=True)
class Letters:
    """The letters of a text without what separates them.

    `borders[i]` says what precedes letter i: another letter of the word (0), a sign (1) or white space (2).
    """

    text: str
    borders: bytes

    def is_border(self, index: int) -> bool:
        """Whether a word starts or ends here."""
        return index == len(self.text) or self.borders[index] != _INSIDE

    def count_spaces(self, start: int, end: int) -> int:
        """White space between the letters of a part."""
        return self.borders.count(_SPACE, start + 1, end)


def visible_text(text: str) -> str:
    """NFKD without marks and invisible characters. Hangul syllables stay whole."""
    if text.isascii():
        return text
    # Marks go first: sorting a long run of them takes quadratic time.
    seen = "".join(map(_seen, text))
    decomposed = _NOT_HANGUL.sub(lambda found: unicodedata.normalize("NFKD", found[0]), seen)
    return "".join(char for char in decomposed if unicodedata.category(char) not in _UNSEEN_CATEGORIES)


def _seen(char: str) -> str:
    if char in _PHRASES:
        return " "
    return "" if char in _FILLERS or unicodedata.category(char) in _UNSEEN_CATEGORIES else char


def folded_text(visible: str) -> str:
    """Visible text in lower case, with look-alike letters in Latin."""
    folded = visible.casefold()
    return folded if folded.isascii() else folded.translate(TO_LATIN)


def in_display_order(text: str) -> str:
    """The text as a right-to-left override shows it."""
    return _REVERSED.sub(lambda found: found[1][::-1], text)


def readings(visible: str, alphabet: AbstractSet[str]) -> Iterator[Letters]:
    """The ways to read visible text, at most eight: signs and digits as letters or as separators, repeated
    letters as they are or once. Words of other scripts are left out unless a letter is in the alphabet.
    """
    spelled = _spell(visible, alphabet)
    patterns = [_WORD]
    if _SIGN.search(spelled):
        patterns += [_WORD_WITH_SIGNS, _WORD_WITH_INNER_SIGNS]
    if _DIGIT_IN_WORD.search(spelled):
        patterns.append(_WORD_WITHOUT_DIGITS)
    seen = set()
    for pattern in patterns:
        letters = _read(spelled, pattern)
        if letters.text not in seen:
            seen.add(letters.text)
            yield from _with_single_letters(letters)


def _with_single_letters(letters: Letters) -> Iterator[Letters]:
    yield letters
    if _REPEATED.search(letters.text):
        single = without_repeats(letters)
        if single.text != letters.text:
            yield single


def term_letters(term: str) -> Letters:
    """The letters and digits of a term, in any script."""
    return _read(_spell(visible_text(term), None), _WORD)


def _spell(visible: str, alphabet: AbstractSet[str] | None) -> str:
    """The text in lower-case Latin where it looks like Latin; words of another script as they are."""
    text = _CASE_CHANGE.sub(_BORDER, visible).casefold()
    if text.isascii():
        return text
    return _WORD.sub(lambda found: _to_latin(found[0], alphabet), text.translate(_SYMBOLS))


def _to_latin(word: str, alphabet: AbstractSet[str] | None) -> str:
    if word.isascii():
        return word
    mapped = word.translate(TO_LATIN)
    if mapped.isascii():
        return mapped
    if _LATIN.search(word):
        return _NOT_LATIN.sub(_BORDER, mapped)  # letters of another script inside a Latin word
    if alphabet is not None and alphabet.isdisjoint(word):
        return _BORDER
    return _UNSPACED.sub(f"{_BORDER}\\g<0>{_BORDER}", word)


def _read(text: str, words: re.Pattern[str]) -> Letters:
    parts, borders, end = [], bytearray(), 0
    for found in words.finditer(text):
        word, start = found[0], found.start()
        borders.append(_SPACE if any(map(str.isspace, text[end:start])) else _PUNCTUATION)
        borders.extend(bytes(len(word) - 1))
        parts.append(word)
        end = found.end()
    return Letters("".join(parts), bytes(borders))


def without_repeats(letters: Letters) -> Letters:
    """Repeated letters of a word once; numbers stay as they are."""
    text, borders = letters.text, letters.borders
    kept = [
        index
        for index in range(len(text))
        if borders[index] != _INSIDE or text[index] != text[index - 1] or text[index].isdigit()
    ]
    return Letters("".join(text[i] for i in kept), bytes(borders[i] for i in kept))


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

    def search(self, visible: str) -> Iterator[list[Match]]:
        """The matches of each reading of a visible text."""
        for letters in readings(visible, self.alphabet):
            yield self.find(letters)

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
