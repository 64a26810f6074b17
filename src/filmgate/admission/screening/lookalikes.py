"""Letters that look like Latin ones: a table per Unicode TS 39, and variants of Latin letters by name."""

import re
import unicodedata
from collections.abc import Iterator

# After NFKD and case folding.
_OTHER_SCRIPTS = {
    # Cyrillic
    "аӑӓ": "a", "вʙ": "b", "сҫ": "c", "ԁ": "d", "еёєҽ": "e", "ԍ": "g", "һн": "h", "іїӏ": "i", "јϳ": "j",
    "кқҝ": "k", "м": "m", "пո": "n", "оӧө": "o", "рҏ": "p", "ԛ": "q", "гᴦ": "r", "ѕ": "s",
    "тҭ": "t", "ս": "u", "ѵ": "v", "ԝѡ": "w", "хҳ": "x", "уүұ": "y",
    # Greek
    "α": "a", "β": "b", "ϲ": "c", "ε": "e", "η": "n", "ι": "i", "κ": "k", "ν": "v", "ο": "o", "ρ": "p",
    "σ": "o", "τ": "t", "υ": "u", "χ": "x", "γ": "y", "ω": "w", "μ": "u",
    # Armenian
    "օ": "o", "հ": "h", "ց": "g",
    # Cherokee
    "Ꭰ": "d", "ᎡᏒ": "r", "Ꭲ": "t", "Ꭺ": "a", "Ꭻ": "j", "Ꭼ": "e", "ᎳᏔ": "w", "Ꮇ": "m", "Ꮋ": "h", "Ꮍ": "y",
    "ᏀᏳ": "g", "Ꮓ": "z", "ᏕᏚ": "s", "Ꮩ": "v", "Ꮮ": "l", "Ꮯ": "c", "Ꮲ": "p", "Ꮶ": "k", "Ᏼ": "b",
    # Lisu
    "ꓐ": "b", "ꓑ": "p", "ꓓ": "d", "ꓔ": "t", "ꓖ": "g", "ꓗ": "k", "ꓙ": "j", "ꓚ": "c", "ꓜ": "z", "ꓝ": "f",
    "ꓟ": "m", "ꓠ": "n", "ꓡ": "l", "ꓢ": "s", "ꓣ": "r", "ꓦ": "v", "ꓧ": "h", "ꓪ": "w", "ꓫ": "x", "ꓬ": "y",
    "ꓮ": "a", "ꓰ": "e", "ꓲ": "i", "ꓳ": "o", "ꓴ": "u",
    # Canadian syllabics, Thai and Hebrew letters, and currency signs, as generators of fancy text use them
    "ᗩ": "a", "ᗷ": "b", "ᑕᑢ": "c", "ᗪ": "d", "ᗴᕮ": "e", "ᖴ": "f", "ᕼ": "h", "ᒍ": "j", "ᛕ": "k", "ᒪ": "l",
    "ᗰ": "m", "ᑎ": "n", "ᗝᝪ": "o", "ᑭ": "p", "ᖇ": "r", "ᔕ": "s", "ᑌ": "u", "ᐯ": "v", "ᗯ": "w", "᙭": "x",
    "ค": "a", "๒": "b", "ς": "c", "๔": "d", "ђ": "h", "เ": "i", "ן": "j", "๓": "m", "ภ": "n", "๏": "o",
    "ק": "p", "ร": "s", "շ": "t", "ย": "u", "ש": "v", "ฬ": "w", "א": "x", "ץ": "y", "չ": "z",
    "₳": "a", "฿": "b", "₵¢": "c", "₫": "d", "₣": "f", "₲": "g", "₭": "k", "₤": "l", "₥": "m", "₦": "n",
    "₱": "p", "₴": "s", "₮": "t", "₩": "w", "¥": "y",
    # Latin letters whose names do not say what they look like
    "ƅ": "b", "ɑ": "a", "ɐ": "a", "ǝə": "e", "ɡ": "g", "ɪı": "i", "ł": "l", "ɯ": "m", "ɔ": "c", "ʌ": "v",
}  # fmt: skip
# Blocks of Latin letters with strokes, hooks and small capitals, and letters in circles, squares and flags.
_LATIN_BLOCKS = (
    (0x0080, 0x02B0), (0x1D00, 0x1DC0), (0x1E00, 0x1F00), (0x2C60, 0x2C80), (0xA720, 0xA800),
    (0xAB30, 0xAB70), (0x1F100, 0x1F200),
)  # fmt: skip
_LETTER_NAME = re.compile(
    r"(?:LATIN (?:SMALL |CAPITAL )?LETTER (?:SMALL CAPITAL )?(?:TURNED |REVERSED |DOTLESS |OPEN )?"
    r"|(?:NEGATIVE )?(?:SQUARED|CIRCLED) LATIN CAPITAL LETTER |REGIONAL INDICATOR SYMBOL LETTER )"
    r"(?P<letter>[A-Z])(?: WITH .*)?"
)


def _variants() -> Iterator[tuple[int, str]]:
    for first, end in _LATIN_BLOCKS:
        for code in range(first, end):
            found = _LETTER_NAME.fullmatch(unicodedata.name(chr(code), ""))
            if found is not None:
                yield code, found["letter"].lower()


TO_LATIN = dict(_variants()) | {
    ord(char): latin for chars, latin in _OTHER_SCRIPTS.items() for char in chars
}  # fmt: skip
