"""A command line that cannot be parsed: what is wrong in one sentence, with a remedy."""

import re
from collections.abc import Callable
from difflib import get_close_matches

import typer

# typer has no public name for the class of all errors of its parser: it is the base of the one that has.
PARSE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


def _name(parameter: str) -> str:
    """An argument as the usage line has it: in capitals."""
    return parameter if parameter.startswith("'-") else parameter.strip("'").upper()


def _suggest(option: str, known: str) -> str:
    """The most similar option; the parser lists several, by name."""
    (nearest,) = get_close_matches(option, known.split(", "), n=1, cutoff=0)
    return f"there is no option {option}; did you mean {nearest}?"


# What the parser says, and how the documentation would say it.
_PLAIN: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"Invalid value for (.+?): (.*)", r"\1: \2"),
    (r"Missing (?:option|argument) (.*?)\.(?: .*)?$", lambda found: f"{_name(found[1])} is missing"),
    (r"No such option: (\S+) \(Possible options: (.*)\)", lambda found: _suggest(*found.groups())),
    (r"No such option: (\S+)", r"there is no option \1"),
    (r"No such command '(.*?)'\. Did you mean '([\w-]+)'.*\?", r"there is no command \1; did you mean \2?"),
    (r"No such command '(.*?)'\.?", r"there is no command \1"),
    (r"Got unexpected extra argument(?:\(s\)|s)? \((.*)\)", r"unexpected argument: \1"),
    (r"Option '(.*?)' (.*?)\.?$", r"\1 \2"),
)
_QUOTED_FLAG = re.compile(r"'(-{1,2}[\w-]+|[A-Z_]+)'|(?<=did you mean )'(\w+)'")


def describe(error: Exception) -> tuple[str, bool]:
    """The message for the user, and whether it is a whole help page: of a group without a command."""
    message = str(error.format_message())  # type: ignore[attr-defined]
    if message.startswith("Usage:"):
        return message, True
    message = _QUOTED_FLAG.sub(r"\1\2", plain(message))
    context = getattr(error, "ctx", None)
    see = f"see `{context.command_path} --help`" if context is not None else "see `filmgate --help`"
    return f"{message.rstrip('.')}{' ' if message.endswith('?') else '; '}{see}", False


def plain(message: str) -> str:
    """A message of the parser in the words of the documentation."""
    from filmgate.settings.wording import in_plain_words

    message = in_plain_words(message)
    for pattern, words in _PLAIN:
        message = re.sub(pattern, words, message)
    return message
