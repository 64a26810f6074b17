"""Readiness of a process: named checks that answer `ok` or a short reason."""

from collections.abc import Callable, Mapping

from filmgate.errors import FilmgateError

OK = "ok"
Check = Callable[[], str]


class Readiness:
    """The checks of one process. A check that raises a FilmgateError answers with its code."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = dict(checks)

    def read(self) -> dict[str, str]:
        """The answer of every check, by name."""
        return {name: _answer(check) for name, check in self._checks.items()}


def is_ready(parts: Mapping[str, str]) -> bool:
    """Whether every check answered `ok`."""
    return all(answer == OK for answer in parts.values())


def _answer(check: Check) -> str:
    try:
        return check()
    except FilmgateError as exc:
        return exc.code
