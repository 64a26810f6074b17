"""Normalises Unicode for matching: removes invisible characters and maps look-alike letters to Latin.

Only the rules see the folded text; the model gets what the client wrote.
"""

import re
import unicodedata

# Letters of other scripts that look like Latin ones (after NFKC and case folding), per Unicode TS 39.
_LOOKALIKES = {
    # Cyrillic
    "аӑӓ": "a", "вʙ": "b", "сҫ": "c", "ԁ": "d", "еёєҽ": "e", "ԍɡ": "g", "һнн": "h", "іїӏ": "i", "јϳ": "j",
    "кқҝ": "k", "ӏ": "l", "мᴍ": "m", "пո": "n", "оӧө": "o", "рҏ": "p", "ԛ": "q", "гᴦ": "r", "ѕ": "s",
    "тҭ": "t", "ս": "u", "ѵ": "v", "ԝѡ": "w", "хҳ": "x", "уүұ": "y", "ʐ": "z",
    # Greek
    "α": "a", "β": "b", "ϲ": "c", "ε": "e", "η": "n", "ι": "i", "κ": "k", "ν": "v", "ο": "o", "ρ": "p",
    "σ": "o", "τ": "t", "υ": "u", "χ": "x", "γ": "y", "ω": "w", "μ": "u",
    # Armenian, Latin extensions and small capitals
    "օ": "o", "հ": "h", "ց": "g", "ɑ": "a", "ᴀ": "a", "ƅ": "b", "ᴄ": "c", "đ": "d", "ᴅ": "d", "ᴇ": "e",
    "ғ": "f", "ɢ": "g", "ʜ": "h", "ı": "i", "ɪ": "i", "ᴊ": "j", "ᴋ": "k", "ʟ": "l", "ł": "l", "ɴ": "n",
    "ᴏ": "o", "ø": "o", "ᴘ": "p", "ʀ": "r", "ꜱ": "s", "ᴛ": "t", "ᴜ": "u", "ᴠ": "v", "ᴡ": "w", "ʏ": "y",
    "ᴢ": "z", "ß": "s",
}  # fmt: skip
_FOLD = str.maketrans({char: latin for chars, latin in _LOOKALIKES.items() for char in chars})

# Digits and signs used as letters; replaced only in words that also contain letters.
_LEET = str.maketrans("01345789@$!+", "oieastbgasit")
_MIXED_WORD = re.compile(r"(?=\S*[a-z])(?=\S*[0-9@$!+])\S+")
_SPACED_WORD = re.compile(r"\b(?:[^\W\d_][\s.\-_*]{1,2}){2,}[^\W\d_]\b")
_SEPARATORS = re.compile(r"[\s.\-_*]+")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
# Joiners between two Latin letters hide words; in Persian, Indic scripts and emoji they are legitimate.
_HIDDEN = re.compile("(?<=[A-Za-z])[\u00ad\u200b-\u200f\u2060-\u2064\ufeff\u180e]+(?=[A-Za-z])")


def visible_text(text: str) -> str:
    """NFKC without format characters."""
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text)
    return "".join(char for char in text if unicodedata.category(char) != "Cf")


def folded_text(text: str) -> str:
    """The visible text in lower-case Latin, without accents and look-alike letters."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", visible_text(text).casefold())
    bare = "".join(char for char in decomposed if not unicodedata.combining(char))
    return bare.translate(_FOLD)


def readings(text: str) -> tuple[str, ...]:
    """The folded text as it is, with s p a c e d letters joined, and with d1g1ts replaced by letters."""
    folded = folded_text(text)
    joined = _SPACED_WORD.sub(_join, folded)
    undone = _MIXED_WORD.sub(lambda match: match[0].translate(_LEET), joined)
    return tuple(dict.fromkeys((folded, joined, undone)))


def _join(match: re.Match[str]) -> str:
    """Spaced letters as a word; also without the first or last letter, which may be an article."""
    word = _SEPARATORS.sub("", match[0])
    return f"{word} {word[1:]} {word[:-1]}"


def has_bidi_controls(text: str) -> bool:
    """Whether the text has bidirectional control characters, which change the reading order."""
    return _BIDI.search(text) is not None


def has_hidden_characters(text: str) -> bool:
    """Whether the text has invisible characters inside Latin words."""
    return _HIDDEN.search(text) is not None
