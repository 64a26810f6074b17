"""Records the calls of one request between the files of the packages on its path."""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType

import filmgate

SOURCE = Path(filmgate.__file__).parent
PACKAGES = ("api", "admission", "worker", "scheduling", "pipeline", "store")
"""The packages on the path, from top to bottom. Calls of other packages are not recorded."""

CALLBACKS = frozenset(
    {
        "GpuRunner._produce",
        "_TaskControl.report",
        "_TaskControl.prepare_device",
        "_TaskControl.enter_device",
        "_TaskControl.leave_device",
        "Worker._is_stopping",
        "ClipSpool.follow",
        "ClipSpool.head",
        "ClipSpool.chunks",
    }
)
"""Functions and generators that a package passes down, and a package below runs."""

TIMED = (
    "Heartbeat.",
    "SqlQueue.heartbeat",
    "SqlQueue.wait",
    "PollWaker.wait",
    "Device.wait",
    "DeviceMeter.wait",
)
"""Functions that a fast machine may not call: heartbeats during a job, and waiting for the next one."""

_INNER = ("<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
"""Parts of a function that Python runs as functions."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function by its file in the package and its name, such as `Admission.accept`."""

    file: str
    name: str
    is_property: bool = False

    @property
    def package(self) -> str:
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
Step = tuple[Function, Function]


@dataclass
class Walk:
    """Calls from one file into another, each once, in the order in which they first happen.

    In `steps`, the caller is the function through which its file was entered: each call follows another.
    """

    calls: dict[Call, None] = field(default_factory=dict)
    steps: dict[Step, None] = field(default_factory=dict)
    _codes: dict[CodeType, Function | None] = field(default_factory=dict)

    def take(self) -> tuple[list[Call], list[Step]]:
        """The calls and the steps since the last `take`."""
        taken = list(self.calls), list(self.steps)
        self.calls.clear()
        self.steps.clear()
        return taken

    def has(self, name: str) -> bool:
        """Whether a function of this name was called since the last `take`."""
        return any(callee.name == name for _, callee in list(self.calls))

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or frame.f_code.co_name in _INNER or (callee := self._find(frame.f_code)) is None:
            return
        callers = self._find_callers(frame.f_back)
        if not callers or callers[0].file == callee.file:
            return
        self.calls.setdefault((callers[0], callee))
        if callee.is_step:
            self.steps.setdefault((_find_entry(callers), callee))

    def _find_callers(self, frame: FrameType | None) -> list[Function]:
        """The frames on the path, innermost first: libraries and other packages pass calls on."""
        found = []
        while frame is not None:
            if (function := self._find(frame.f_code)) is not None:
                found.append(function)
            frame = frame.f_back
        return found

    def _find(self, code: CodeType) -> Function | None:
        if code not in self._codes:
            path = Path(code.co_filename)
            file = path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else ""
            is_on_path = file.split("/")[0] in PACKAGES and code.co_name != "<module>"
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


def _find_entry(callers: list[Function]) -> Function:
    """The nearest function that was called from another file: the others are read with it."""
    for caller, above in zip(callers, [*callers[1:], None], strict=True):
        if caller.is_step and (above is None or above.file != caller.file):
            return caller
    return callers[-1]


def upward_calls(calls: list[Call]) -> list[str]:
    """Calls from a package into a package above it, except callbacks."""
    return [
        f"{caller} -> {callee}"
        for caller, callee in calls
        if PACKAGES.index(callee.package) < PACKAGES.index(caller.package) and not callee.is_callback
    ]


def count_functions(steps: Iterable[Step]) -> int:
    """Functions that are called from another file, without constructors and properties."""
    return len({callee for _, callee in steps})


def count_files(steps: Iterable[Step]) -> int:
    return len({function.file for step in steps for function in step})


def to_page(create: list[Step], job: list[Step]) -> str:
    """docs/request/walk.md."""
    return _HEADER + _section("Create", create) + _section("Job", job)


def is_timed(*functions: str) -> bool:
    """Whether the machine's speed decides if a line of the page is used."""
    return any(function.split()[1].startswith(TIMED) for function in functions)


def read_page(text: str) -> dict[str, tuple[str, set[tuple[str, str]]]]:
    """By walk, its heading and its calls: a call is a line that is indented under its caller."""
    walks = {}
    for section in text.split("\n## ")[1:]:
        heading, _, rest = section.partition("\n")
        callers: list[str] = []
        calls = set()
        for line in rest.splitlines():
            if line.startswith("    "):
                depth, name = (len(line) - len(line.lstrip())) // 2 - 2, line.strip()
                callers = [*callers[:depth], name]
                calls |= {(callers[-2], name)} if depth else set()
        walks[heading.partition(":")[0]] = heading, calls
    return walks


def _section(title: str, steps: list[Step]) -> str:
    called: dict[Function, list[Function]] = {}
    for caller, callee in steps:
        called.setdefault(caller, []).append(callee)
    callees = {callee for _, callee in steps}
    shown: set[Function] = set()

    def lines(function: Function, depth: int) -> Iterator[str]:
        yield f"{'  ' * (depth + 2)}{function}\n"
        if function not in shown:
            shown.add(function)
            for callee in called.get(function, []):
                yield from lines(callee, depth + 1)

    roots = [caller for caller in called if caller not in callees]
    text = "".join(line for root in roots for line in lines(root, 0))
    counts = f"{count_functions(steps)} functions in {count_files(steps)} files"
    return f"\n## {title}: {counts}\n\n{text}"


_HEADER = """\
# The calls of one request

`tests/integration/test_walk.py` records one `POST /v1/videos` and one job of Flipbook on a CPU, and writes
this page (`make docs`). It fails when a package calls a package above it, when a call is missing here, and
when a line is no longer used. The packages, from top to bottom: api, admission, worker, scheduling, pipeline,
store. Calls into other packages are not recorded, and callbacks may be called from below.

A line is a function that is called from another file, under the function through which its caller's file was
entered. What a function calls is listed at its first line only. A line at the margin is where the server, the
worker or one of its threads starts. Constructors, properties and functions of the same file are left out:
they are read with their class or file. The worker is running, with its model loaded, when the job begins.
"""
