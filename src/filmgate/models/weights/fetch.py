"""One version of a model from S3 to a folder: many ranges at once, resumed where an earlier try stopped."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filmgate.errors import Cancelled, ModelError, StoreFull, StoreUnavailable
from filmgate.models.weights.journal import Journal
from filmgate.models.weights.manifest import FileRecord, Manifest, hash_file
from filmgate.models.weights.remote import Remote

Report = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes there will be."""

_TRIES_A_RANGE = 5
_TRIES_A_FILE = 2
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Piece:
    """One range of one file."""

    file: FileRecord
    begin: int
    end: int


class Fetch:
    """Fills `folder` with the manifest's files; each is checked against its digest before the fetch ends."""

    def __init__(self, remote: Remote, manifest: Manifest, folder: Path, journal_path: Path) -> None:
        settings = remote.settings
        self._remote = remote
        self._manifest = manifest
        self._folder = folder
        self._range_bytes = settings.range_bytes
        self._connections = settings.connections
        self._journal = Journal(journal_path, f"{manifest.digest} {settings.range_bytes}")
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._done_bytes = 0
        self._pieces_left: Counter[str] = Counter()

    def run(self, report: Report | None = None) -> None:
        """Raises StoreUnavailable, StoreFull, or ModelError for files that do not match their digest."""
        for _ in range(_TRIES_A_FILE):
            if not (unverified := self._unverified()):
                return
            self._prepare(unverified)
            pieces = [piece for file in unverified for piece in self._missing(file)]
            self._done_bytes = self._manifest.total_bytes - sum(p.end - p.begin for p in pieces)
            self._pieces_left = Counter(piece.file.path for piece in pieces)
            whole = [file for file in unverified if not self._pieces_left[file.path]]
            self._work(
                [partial(self._fetch, piece, report) for piece in pieces]
                + [partial(self._verify, file) for file in whole]
            )
        if bad := [file.path for file in self._unverified()]:
            raise ModelError(f"{', '.join(bad)} in {self._remote.location.url} do not match the manifest")

    def _unverified(self) -> list[FileRecord]:
        return [file for file in self._manifest.files if not self._journal.is_verified(file.path)]

    def _prepare(self, files: list[FileRecord]) -> None:
        for file in files:
            path = self._folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab"):
                os.truncate(path, file.size_bytes)

    def _missing(self, file: FileRecord) -> Iterator[_Piece]:
        for begin in range(0, file.size_bytes, self._range_bytes):
            if not self._journal.has_range(file.path, begin):
                yield _Piece(file, begin, min(begin + self._range_bytes, file.size_bytes))

    def _work(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run the tasks on the connections' threads; the first failure stops the rest and is raised."""
        with ThreadPoolExecutor(self._connections, thread_name_prefix="filmgate-fetch") as pool:
            futures = [pool.submit(self._stopping_others, task) for task in tasks]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise
            failures = [error for future in done if (error := future.exception()) is not None]
            if failures:
                pool.shutdown(cancel_futures=True)
                # Those that were stopped only tell that another failed.
                raise min(failures, key=lambda error: isinstance(error, Cancelled))

    def _stopping_others(self, task: Callable[[], None]) -> None:
        """Stop the rest from the thread that failed: its next task may begin before anyone is woken."""
        try:
            task()
        except BaseException:
            self._stop.set()
            raise

    def _fetch(self, piece: _Piece, report: Report | None) -> None:
        for attempt in range(1, _TRIES_A_RANGE + 1):
            try:
                self._copy(piece)
                break
            except StoreFull:
                raise
            except StoreUnavailable:
                if attempt == _TRIES_A_RANGE or self._stop.wait(_PAUSE_SECONDS * 2**attempt):
                    raise
        self._journal.add_range(piece.file.path, piece.begin)
        with self._guard:
            self._pieces_left[piece.file.path] -= 1
            is_last = self._pieces_left[piece.file.path] == 0
            self._done_bytes += piece.end - piece.begin
            if report is not None:
                report(self._done_bytes, self._manifest.total_bytes)
        if is_last:
            self._verify(piece.file)

    def _copy(self, piece: _Piece) -> None:
        place = piece.begin
        target = os.open(self._folder / piece.file.path, os.O_WRONLY)
        try:
            for data in self._remote.read_range(piece.file, piece.begin, piece.end):
                if self._stop.is_set():
                    raise Cancelled("the download was stopped")
                place += _write(target, data[: piece.end - place], place)
        finally:
            os.close(target)
        if place != piece.end:
            raise StoreUnavailable(f"{piece.file.path} ended {piece.end - place} bytes early")

    def _verify(self, file: FileRecord) -> None:
        path = self._folder / file.path
        if hash_file(path) != file.sha256:
            self._journal.drop(file.path)
            return
        with path.open("rb") as whole:
            os.fsync(whole.fileno())
        self._journal.add_verified(file.path)


def _write(target: int, data: bytes, place: int) -> int:
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(target, data[written:], place + written)
    except OSError as exc:
        raise StoreFull(f"the model cache cannot be written: {exc.strerror}") from exc
    return len(data)
