"""Records the calls of one request between the files of the rooms on its path."""

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
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

_INNER = ("<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
"""Parts of a function that Python runs as functions."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function by its file in the package and its name, such as `Admission.accept`."""

    file: str
    name: str
    is_property: bool = False

    @property
    def room(self) -> str:
        return self.file.split("/")[0]

    @property
    def is_step(self) -> bool:
        """Whether a reader follows it: an object's constructor and its properties are read with its class."""
        return not self.is_property and self.name.rpartition(".")[2] not in {"__init__", "__post_init__"}

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

    def has(self, name: str) -> bool:
        """Whether a function of this name was called since the last `take`."""
        return any(callee.name == name for _, callee in list(self.calls))

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or frame.f_code.co_name in _INNER or (callee := self._find(frame.f_code)) is None:
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
            name = code.co_qualname
            while name.endswith(_INNER):
                name = name.rpartition(".<locals>.")[0]
            self._codes[code] = Function(file, name, _is_property(file, name)) if is_on_path else None
        return self._codes[code]


def _is_property(file: str, name: str) -> bool:
    owner: object = sys.modules[
        "filmgate." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    ]
    for part in name.split("."):
        owner = getattr(owner, part, None)
    return isinstance(owner, property | cached_property)


@contextmanager
def recorded_walk():
    """Records the threads that start in the block: those of a server and of a worker, not the test's own."""
    walk = Walk()
    threading.setprofile(walk.profile)
    try:
        yield walk
    finally:
        threading.setprofile(None)


def upward_calls(calls: list[Call]) -> list[str]:
    """Calls from a room into a room above it, except callbacks."""
    return [
        f"{caller} -> {callee}"
        for caller, callee in calls
        if ROOMS.index(callee.room) < ROOMS.index(caller.room) and not callee.is_callback
    ]


def count_functions(calls: list[Call]) -> int:
    """Functions that are called from another file, without constructors and properties."""
    return len({callee for _, callee in calls if callee.is_step})


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
        f"The calls from one room into another:\n\n{lines}"
    )


_HEADER = """\
# The calls of one request

`tests/integration/test_walk.py` records one `POST /v1/videos` and one job of the shipped model on a CPU, and
writes this page (`make docs`). The test fails when a room calls a room above it, or makes a call between
rooms that this page does not list. The rooms, from top to bottom: api, admission, worker, scheduling,
pipeline, store. Rooms beside the path are not recorded. A function that a room passes down as a callback may
be called from below.

The numbers count functions that are called from another file, and all files that take part. Constructors and
properties are recorded but not counted as functions: they are read with their class. A lambda or a
comprehension is part of the function that contains it. The worker is running, with its model loaded, when the
job begins.
"""
