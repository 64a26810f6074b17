"""What pydantic says about a wrong value, in the words of the documentation."""

import re

_WORDS = (
    (r"Input should be a valid integer.*", "must be a whole number"),
    (r"Input should be a valid number.*", "must be a number"),
    (r"Input should be a valid boolean.*", "must be true or false"),
    (r"Input should be greater than or equal to ", "must be at least "),
    (r"Input should be less than or equal to ", "must be at most "),
    (r"Input should be ", "must be "),
    (r"String should have at least 1 character", "must not be empty"),
    (r"String should have at most (\d+) characters", r"must have at most \1 characters"),
    (r"Value error, (.*?)\.?$", r"\1"),
)


def in_plain_words(message: str) -> str:
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message
