"""Finds personal data: card numbers and IBANs by their check digits, e-mail addresses, phone numbers."""

import re

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
