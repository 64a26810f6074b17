"""The texts of settings: lists of names, secrets, and what is wrong with a value, in plain words."""

import re

from pydantic_core import ErrorDetails

# Applied in this order. The command line has other words before these.
_WORDS = (
    (r"Input should be a valid integer.*", "must be a whole number"),
    (r"Input should be a valid number.*", "must be a number"),
    (r"Input should be a valid boolean.*", "must be true or false"),
    (r"Input should be a (?:valid )?(?:dictionary|object).*", "must be an object"),
    (r"Input is not a valid path.*", "must be a path"),
    (r"Extra inputs are not permitted|Unexpected keyword argument", "is not a known key"),
    (r"String should have at least 1 character", "must not be empty"),
    (r"(?:Input|String|List|Dictionary) should ", "must "),
    (r"must be greater than or equal to ", "must be at least "),
    (r"must be less than or equal to ", "must be at most "),
    (r"must be a valid ", "must be a "),
    (r"must match pattern '(.*)'", r"must match \1"),
    (r" after validation, not \d+", ""),
    (r"Value error, (.*?)\.?$", r"\1"),
)


def explain(name: str, error: ErrorDetails) -> str:
    """What is wrong with the value of this name."""
    if error["type"] == "missing":
        return f"{name} is missing"
    return f"{name}: {in_plain_words(error['msg'])}"


def in_plain_words(message: str) -> str:
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message


def parse_names(text: str) -> frozenset[str]:
    """The comma-separated names of a setting."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def masked(key: str, value: object) -> object:
    """The value as it may be printed: no secret, and no password in a URL."""
    if value and any(word in key.rpartition(".")[2] for word in _SECRET_WORDS):
        return "********"
    return _URL_PASSWORD.sub(r"\1\2********", value) if isinstance(value, str) else value


_SECRET_WORDS = ("secret", "password", "token", "api_key")
# A password may contain any character: databases are opened with `/` in it, too.
_URL_PASSWORD = re.compile(r"(://[^/@:]*:).+(?=@)|([?&][a-z]*password=)[^&]+")
