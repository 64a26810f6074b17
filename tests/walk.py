"""Records the walk of a request: which Filmgate functions call which, across files."""

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import filmgate

PACKAGE = Path(filmgate.__file__).parent
ROOMS = ("api", "admission", "scheduling", "worker", "pipeline", "store")
"""The rooms on the path, from top to bottom. Rooms beside the path do not count."""


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
        """A nested function: called by another room, but part of the room that created it."""
        return "<locals>" in self.name or self.name.endswith("<lambda>")


@dataclass
class Walk:
    """Calls from one file into another, each once, in the order in which they first happen."""

    calls: dict[tuple[Function, Function], None] = field(default_factory=dict)
    _codes: dict[CodeType, Function | None] = field(default_factory=dict)

    @property
    def files(self) -> set[str]:
        return {function.file for call in self.calls for function in call}

    @property
    def functions(self) -> list[Function]:
        """The functions that are entered from another file."""
        return list(dict.fromkeys(callee for _, callee in self.calls))

    def upward_calls(self) -> list[tuple[Function, Function]]:
        """Calls from a room into a room above it, except callbacks."""
        return [
            (caller, callee)
            for caller, callee in self.calls
            if caller.room in ROOMS
            and callee.room in ROOMS
            and ROOMS.index(callee.room) < ROOMS.index(caller.room)
            and not callee.is_callback
        ]

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or (callee := self._find(frame.f_code)) is None:
            return
        caller = self._find_caller(frame.f_back)
        if caller is not None and caller.file != callee.file:
            self.calls.setdefault((caller, callee))

    def _find_caller(self, frame: FrameType | None) -> Function | None:
        """The nearest frame of the package: libraries in between pass calls on."""
        while frame is not None:
            if (function := self._find(frame.f_code)) is not None:
                return function
            frame = frame.f_back
        return None

    def _find(self, code: CodeType) -> Function | None:
        if code not in self._codes:
            path = Path(code.co_filename)
            is_ours = path.is_relative_to(PACKAGE) and not code.co_name.startswith("<module")
            file = path.relative_to(PACKAGE).as_posix() if is_ours else ""
            self._codes[code] = Function(file, code.co_qualname) if is_ours else None
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
