"""Exits a process that has loaded torch without spending a second on freeing every object."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_exit() -> Iterator[None]:
    """Around the whole program: end the process when all other exit handlers have run.

    The handler that is registered first is called last. The operating system then frees the memory at once.
    """
    codes: list[int] = []

    def leave() -> None:
        if codes and "torch" in sys.modules:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])

    atexit.register(leave)
    try:
        yield
    except SystemExit as exc:
        if isinstance(exc.code, int):
            codes.append(exc.code)
        raise
