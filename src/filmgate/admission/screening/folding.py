"""Reduces a text to the letters a reader sees, in linear time.

Only the rules see the result; the model gets what the client wrote. Every character becomes at most four:
the few that Unicode expands to whole words become a space.
"""

import re
import unicodedata
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

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
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
# Invisible characters between two Latin letters hide words; in Persian, Indic scripts and emoji they are
# legitimate.
_HIDDEN = re.compile(
    "(?<=[A-Za-z])[\u00ad\u034f\u115f\u1160\u180b-\u180f\u200b-\u200f\u2060-\u2064\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\U000e0000-\U000e0fff]+(?=[A-Za-z])"
)

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


def readings(visible: str, alphabet: AbstractSet[str] = frozenset()) -> Iterator[Letters]:
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


# Letters in circles, squares and flags, and currency signs, are symbols, not parts of words.
_SYMBOLS = {code: latin for code, latin in TO_LATIN.items() if unicodedata.category(chr(code))[0] in "SP"}


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


def has_bidi_controls(text: str) -> bool:
    """Whether the text has bidirectional control characters, which change the reading order."""
    return _BIDI.search(text) is not None


def has_hidden_characters(text: str) -> bool:
    """Whether the text has invisible characters inside Latin words."""
    return _HIDDEN.search(text) is not None
