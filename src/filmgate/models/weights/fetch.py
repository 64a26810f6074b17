"""Downloads one version of a model to a folder in parallel ranges, and resumes an earlier download."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filmgate.errors import Cancelled, ModelError, StoreUnavailable
from filmgate.models.weights.journal import Journal
from filmgate.models.weights.manifest import FileRecord, Manifest, hash_file
from filmgate.models.weights.remote import Remote

ReportProgress = Callable[[int, int], None]
"""Called with the bytes downloaded so far and the total."""

_ATTEMPTS_PER_RANGE = 5
_ATTEMPTS_PER_FILE = 2
_BACKOFF_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Range:
    """The bytes [begin, end) of one file."""

    file: FileRecord
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


class Fetch:
    """Downloads the manifest's files into `folder` and checks each against its digest."""

    def __init__(self, remote: Remote, manifest: Manifest, folder: Path, journal_path: Path) -> None:
        settings = remote.settings
        self._remote = remote
        self._manifest = manifest
        self._folder = folder
        self._range_bytes = settings.range_bytes
        self._connections = settings.connections
        self._journal = Journal(journal_path, f"{manifest.digest} {settings.range_bytes}")
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._ranges_left: Counter[str] = Counter()

    def run(self, report: ReportProgress | None = None) -> None:
        """Raises StoreUnavailable, OSError, or ModelError for files that do not match their digest."""
        for _ in range(_ATTEMPTS_PER_FILE):
            if not (unverified := self._unverified()):
                return
            self._allocate(unverified)
            missing = [each for file in unverified for each in self._missing_ranges(file)]
            self._done_bytes = self._manifest.total_bytes - sum(each.size_bytes for each in missing)
            self._ranges_left = Counter(each.file.path for each in missing)
            complete = [file for file in unverified if not self._ranges_left[file.path]]
            self._run_all(
                [partial(self._fetch, each, report) for each in missing]
                + [partial(self._verify, file) for file in complete]
            )
        if bad := [file.path for file in self._unverified()]:
            raise ModelError(f"{', '.join(bad)} in {self._remote.location.url} do not match the manifest")

    def _unverified(self) -> list[FileRecord]:
        return [file for file in self._manifest.files if not self._journal.is_verified(file.path)]

    def _allocate(self, files: list[FileRecord]) -> None:
        for file in files:
            path = self._folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab"):
                os.truncate(path, file.size_bytes)

    def _missing_ranges(self, file: FileRecord) -> Iterator[_Range]:
        for begin in range(0, file.size_bytes, self._range_bytes):
            if not self._journal.has_range(file.path, begin):
                yield _Range(file, begin, min(begin + self._range_bytes, file.size_bytes))

    def _run_all(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Runs the tasks on one thread per connection. The first failure stops the others and is raised."""
        with ThreadPoolExecutor(self._connections, thread_name_prefix="filmgate-fetch") as pool:
            futures = [pool.submit(self._run_one, task) for task in tasks]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            except BaseException:
                self._stop.set()
                raise
            finally:
                pool.shutdown(cancel_futures=True)
        # A stopped task raises Cancelled, possibly before the task that failed has ended.
        errors = (future.exception() for future in futures if not future.cancelled())
        failures = sorted(filter(None, errors), key=lambda error: isinstance(error, Cancelled))
        if failures:
            raise failures[0]

    def _run_one(self, task: Callable[[], None]) -> None:
        """Sets the stop event on the failing thread: it may start its next task before `wait` returns."""
        try:
            task()
        except BaseException:
            self._stop.set()
            raise

    def _fetch(self, wanted: _Range, report: ReportProgress | None) -> None:
        for attempt in range(1, _ATTEMPTS_PER_RANGE + 1):
            try:
                self._copy(wanted)
                break
            except StoreUnavailable:
                if attempt == _ATTEMPTS_PER_RANGE or self._stop.wait(_BACKOFF_SECONDS * 2**attempt):
                    raise
        self._journal.add_range(wanted.file.path, wanted.begin)
        with self._lock:
            self._ranges_left[wanted.file.path] -= 1
            is_last = self._ranges_left[wanted.file.path] == 0
            self._done_bytes += wanted.size_bytes
            if report is not None:
                report(self._done_bytes, self._manifest.total_bytes)
        if is_last:
            self._verify(wanted.file)

    def _copy(self, wanted: _Range) -> None:
        position = wanted.begin
        target = os.open(self._folder / wanted.file.path, os.O_WRONLY)
        try:
            for data in self._remote.read_range(wanted.file, wanted.begin, wanted.end):
                if self._stop.is_set():
                    raise Cancelled("the download was stopped")
                position += _write(target, data[: wanted.end - position], position)
        finally:
            os.close(target)
        if position != wanted.end:
            raise StoreUnavailable(f"{wanted.file.path} ended {wanted.end - position} bytes early")

    def _verify(self, file: FileRecord) -> None:
        path = self._folder / file.path
        if hash_file(path) != file.sha256:
            self._journal.drop(file.path)
            return
        with path.open("rb") as complete:
            os.fsync(complete.fileno())
        self._journal.add_verified(file.path)


def _write(target: int, data: bytes, position: int) -> int:
    written = 0
    while written < len(data):
        written += os.pwrite(target, data[written:], position + written)
    return written
