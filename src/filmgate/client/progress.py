"""A progress bar of a video, in a terminal or a notebook."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from filmgate.client.protocol import Video


@contextmanager
def shown_progress(*, is_wanted: bool) -> Iterator[Callable[[Video], None]]:
    """A function that shows a video: a bar on a terminal and in a notebook, else a line per change."""
    if not is_wanted:
        yield lambda _video: None
        return
    console = Console(file=sys.stderr)
    if not (console.is_terminal or console.is_jupyter):
        yield _lines(console)
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), console=console) as bar:
        task = bar.add_task("sending", total=100)
        yield lambda video: bar.update(task, completed=video.progress, description=video.summary)


def _lines(console: Console) -> Callable[[Video], None]:
    shown = ""

    def show(video: Video) -> None:
        nonlocal shown
        state = video.stage or video.status
        if state != shown:
            shown = state
            console.print(f"{video.id}  {video.summary}", highlight=False, soft_wrap=True)

    return show
