"""Records the calls of one request between the files of the rooms on its path."""

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import filmgate

PACKAGE = Path(filmgate.__file__).parent
ROOMS = ("api", "admission", "worker", "scheduling", "pipeline", "store")
"""The rooms on the path, from top to bottom. Calls of rooms beside the path are not recorded."""

CALLBACKS = frozenset(
    {
        "GpuRunner._produce",
        "_Steps.on_progress",
        "_Steps.take_turn",
        "_Steps.announce_clip",
        "_Steps.emit_decoded",
        "DeviceTurn.leave",
        "Worker._is_stopping",
        "ClipSpool.follow",
        "ClipSpool.head",
        "ClipSpool.chunks",
    }
)
"""Functions and generators that a room passes down, and a room below runs."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function by its file in the package and its name, such as `Admission.accept`."""

    file: str
    name: str

    @property
    def room(self) -> str:
        return self.file.split("/")[0]

    @property
    def is_callback(self) -> bool:
        return "<locals>" in self.name or self.name in CALLBACKS

    def __str__(self) -> str:
        return f"{self.file.removesuffix('.py')} {self.name}"


Call = tuple[Function, Function]


@dataclass
class Walk:
    """Calls from one file into another, each once, in the order in which they first happen."""

    calls: dict[Call, None] = field(default_factory=dict)
    _codes: dict[CodeType, Function | None] = field(default_factory=dict)

    def take(self) -> list[Call]:
        """The calls since the last `take`."""
        calls = list(self.calls)
        self.calls.clear()
        return calls

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or (callee := self._find(frame.f_code)) is None:
            return
        caller = self._find_caller(frame.f_back)
        if caller is not None and caller.file != callee.file:
            self.calls.setdefault((caller, callee))

    def _find_caller(self, frame: FrameType | None) -> Function | None:
        """The nearest frame on the path: libraries and rooms beside the path pass calls on."""
        while frame is not None:
            if (function := self._find(frame.f_code)) is not None:
                return function
            frame = frame.f_back
        return None

    def _find(self, code: CodeType) -> Function | None:
        if code not in self._codes:
            path = Path(code.co_filename)
            file = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else ""
            is_on_path = file.split("/")[0] in ROOMS and code.co_name != "<module>"
            self._codes[code] = Function(file, code.co_qualname) if is_on_path else None
        return self._codes[code]


@contextmanager
def recorded_walk():
    """Records this thread and the threads that start in the block."""
    walk = Walk()
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def upward_calls(calls: list[Call]) -> list[str]:
    """Calls from a room into a room above it, except callbacks."""
    return [
        f"{caller} -> {callee}"
        for caller, callee in calls
        if ROOMS.index(callee.room) < ROOMS.index(caller.room) and not callee.is_callback
    ]


def count_functions(calls: list[Call]) -> int:
    """Functions that are called from another file."""
    return len({callee for _, callee in calls})


def files_of(calls: list[Call]) -> set[str]:
    return {function.file for call in calls for function in call}


def between_rooms(calls: list[Call]) -> list[Call]:
    return [call for call in calls if call[0].room != call[1].room]


def to_page(create: list[Call], job: list[Call]) -> str:
    """docs/request/walk.md."""
    return _HEADER + _section("Create", create) + _section("Job", job)


def _section(title: str, calls: list[Call]) -> str:
    lines = "".join(f"    {caller} -> {callee}\n" for caller, callee in between_rooms(calls))
    return (
        f"\n## {title}: {count_functions(calls)} functions in {len(files_of(calls))} files\n\n"
        f"These are functions called from another file. The calls from one room into another:\n\n{lines}"
    )


_HEADER = """\
# The calls of one request

`tests/integration/test_walk.py` records one `POST /v1/videos` and one job of the shipped model on a CPU, and
writes this page (`make docs`). The test fails when a room calls a room above it, or makes a call between
rooms that this page does not list. The rooms, from top to bottom: api, admission, worker, scheduling,
pipeline, store. Rooms beside the path are not recorded. A function that a room passes down as a callback may
be called from below.
"""
