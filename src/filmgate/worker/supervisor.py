"""Worker child processes of the server: restarted when they die, stopped with the server.

A worker that cannot start (torch is missing, the model does not exist) writes the reason to a file. It is
not restarted if a restart cannot help, or after a few attempts.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from filmgate.errors import DeviceBroken
from filmgate.telemetry.logs import Log

log = Log("serve")

# The delay before a restart: short at first, longer while the worker keeps dying.
_RESTART_SECONDS = (0.5, 30.0)
_STABLE_SECONDS = 60.0
_STOP_SECONDS = 40.0
_MAX_FAILED_STARTS = 3
FAILURE_OPTION = "--failure-file"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with_parent(parent: int) -> None:
    """Between fork and exec: if the server is killed, the worker gets SIGTERM (Linux only)."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the server died before the call above
            os._exit(1)


class WorkerChild:
    """One worker process, restarted when it dies."""

    def __init__(
        self, data: Path, options: Sequence[str], on_failure: Callable[[str], None] = lambda _reason: None
    ) -> None:
        self._command = [sys.executable, "-m", "filmgate", "worker"]
        self._options = list(options)
        self._on_failure = on_failure
        self.has_failed = False
        self._environ = os.environ | {"FILMGATE_DATA": str(data)}
        self._is_stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_running, name="worker-child", daemon=True)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Send SIGTERM and do not restart."""
        self._is_stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Wait for a drained worker to end; kill it if it does not."""
        process = self._process
        if process is not None and process.poll() is None:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(_STOP_SECONDS)

    def _keep_running(self) -> None:
        with TemporaryDirectory(prefix="filmgate-worker-") as folder:
            self._restart_until_stopped(Path(folder) / "failure.json")

    def _restart_until_stopped(self, report: Path) -> None:
        delay, longest = _RESTART_SECONDS
        failed_starts = 0
        while not self._is_stopping.is_set():
            started = time.monotonic()
            # Own session: Ctrl-C reaches only the server, which then drains its worker.
            self._process = subprocess.Popen(
                [*self._command, FAILURE_OPTION, str(report), *self._options],
                start_new_session=True,
                env=self._environ,
                preexec_fn=partial(end_with_parent, os.getpid()),  # noqa: PLW1509 - two system calls, no lock
            )
            if self._is_stopping.is_set():  # `drain` was called before there was a process to signal
                self._process.send_signal(signal.SIGTERM)
            code = self._process.wait()
            if self._is_stopping.is_set():
                return
            if code == DeviceBroken.exit_code:
                self._give_up("its GPU cannot be trusted; the log names it. Replace it, then start again")
                return
            failure = read_failure(report)
            failed_starts = failed_starts + 1 if failure else 0
            if failure and (not failure.is_retryable or failed_starts >= _MAX_FAILED_STARTS):
                self._give_up(failure.message)
                return
            is_stable = time.monotonic() - started > _STABLE_SECONDS
            delay = _RESTART_SECONDS[0] if is_stable else min(delay * 2, longest)
            log.warning("the worker process ended; restarting it", status=code, seconds=delay)
            self._is_stopping.wait(delay)

    def _give_up(self, reason: str) -> None:
        self.has_failed = True
        self._on_failure(reason)


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a worker could not start. `is_retryable`: a restart may help."""

    message: str
    is_retryable: bool


def write_failure(report: Path, failure: StartFailure) -> None:
    """Tell the server why this worker could not start."""
    report.write_text(json.dumps(asdict(failure)))


def read_failure(report: Path) -> StartFailure | None:
    """The reason a worker has written, None if it was ready before it ended. Deletes it."""
    try:
        failure = StartFailure(**json.loads(report.read_text()))
        report.unlink()
    except FileNotFoundError:
        return None
    return failure


@contextmanager
def running_workers(children: Sequence[WorkerChild]) -> Iterator[None]:
    """Run the children until the block ends."""
    for child in children:
        child.start()
    try:
        yield
    finally:
        for child in children:
            child.drain()
        if any(child.is_alive for child in children):
            log.info("waiting for the worker to finish its job; press Ctrl-C again to stop at once")
        for child in children:
            child.stop()
