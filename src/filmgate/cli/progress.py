"""Progress on stderr: a live bar on a terminal, a plain line per stage in a pipe."""

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from filmgate.pipeline.control import Control, Step

LABELS = {"text": "encoding the prompt", "denoise": "denoising", "decode": "decoding"}


@contextmanager
def shown_progress(opening: str) -> "Iterator[Control]":
    """A Control that shows progress; `opening` is shown until the first stage starts."""
    console = Console(file=sys.stderr)
    with _bar(console, opening) if console.is_terminal else _lines(opening) as on_progress:
        from filmgate.pipeline.control import Control

        yield Control(on_progress=on_progress)


@contextmanager
def _bar(console: Console, opening: str) -> "Iterator[Callable[[Step], None]]":
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(opening, total=None)
        current = ""

        def show(step: "Step") -> None:
            nonlocal current
            if step.stage != current:
                current = step.stage
                progress.reset(task, total=step.total, description=LABELS[step.stage])
            progress.update(task, completed=step.done)

        yield show


@contextmanager
def _lines(opening: str) -> "Iterator[Callable[[Step], None]]":
    started = time.perf_counter()
    print(opening, file=sys.stderr)  # noqa: T201 - progress without a terminal
    current = ""

    def show(step: "Step") -> None:
        nonlocal current
        if step.stage != current:
            current = step.stage
            print(f"{time.perf_counter() - started:6.1f} s  {LABELS[step.stage]}", file=sys.stderr)  # noqa: T201

    yield show
