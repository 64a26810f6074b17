"""Worker child processes of the server: restarted when they exit, stopped with the server.

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
from filmgate.telemetry.periodic import attempt

log = Log("serve")

# The delay before a restart: short at first, longer while the worker keeps failing.
_RESTART_SECONDS = (0.5, 30.0)
_STABLE_SECONDS = 60.0
# After its drain, a worker still hands its jobs back and closes its connections.
_STOP_MARGIN_SECONDS = 20.0
_MAX_FAILED_STARTS = 3
_BROKEN_GPU = "the GPU reported a hardware error; replace the GPU that the log names, then start again"
FAILURE_OPTION = "--failure-file"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with_parent(parent: int) -> None:
    """Between fork and exec: if the server is killed, the worker gets SIGTERM (Linux only)."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the server was killed before the call above
            os._exit(1)


class WorkerChild:
    """One worker process, restarted when it exits."""

    def __init__(
        self,
        data: Path,
        options: Sequence[str],
        on_failure: Callable[[str], None] = lambda _reason: None,
        drain_seconds: float = 25.0,
    ) -> None:
        self._command = [sys.executable, "-m", "filmgate", "worker"]
        self._options = list(options)
        self._on_failure = on_failure
        self._stop_seconds = drain_seconds + _STOP_MARGIN_SECONDS
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
        """Wait for a drained worker to exit; kill it if it does not."""
        process = self._process
        if process is not None and process.poll() is None:
            try:
                process.wait(self._stop_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(_STOP_MARGIN_SECONDS)

    def _keep_running(self) -> None:
        try:
            with TemporaryDirectory(prefix="filmgate-worker-") as folder:
                self._restart_until_stopped(Path(folder) / "failure.json")
        except OSError as exc:
            self._give_up(f"the temporary folder cannot be used ({exc.strerror}); set TMPDIR")

    def _restart_until_stopped(self, report: Path) -> None:
        delay, longest = _RESTART_SECONDS
        failed_starts = 0
        while not self._is_stopping.is_set():
            started = time.monotonic()
            code = attempt("worker process", partial(self._run_once, report))
            if self._is_stopping.is_set():
                return
            if code == DeviceBroken.exit_code:
                self._give_up(_BROKEN_GPU)
                return
            failure = read_failure(report)
            failed_starts = failed_starts + 1 if failure else 0
            if failure and (not failure.is_retryable or failed_starts >= _MAX_FAILED_STARTS):
                self._give_up(failure.message)
                return
            is_stable = time.monotonic() - started > _STABLE_SECONDS
            delay = _RESTART_SECONDS[0] if is_stable else min(delay * 2, longest)
            log.warning("the worker process exited; restarting it", status=code, seconds=delay)
            self._is_stopping.wait(delay)

    def _run_once(self, report: Path) -> int:
        """Start the process and wait for it to exit. Returns its exit code."""
        # Own session: Ctrl-C reaches only the server, which then drains its worker.
        self._process = subprocess.Popen(
            [*self._command, FAILURE_OPTION, str(report), *self._options],
            start_new_session=True,
            env=self._environ,
            preexec_fn=partial(end_with_parent, os.getpid()),  # noqa: PLW1509 - two system calls, no lock
        )
        if self._is_stopping.is_set():  # `drain` was called before there was a process to signal
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait()

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
    draft = report.with_suffix(".draft")
    draft.write_text(json.dumps(asdict(failure)))
    draft.replace(report)


def read_failure(report: Path) -> StartFailure | None:
    """The reason that a worker has written; None if there is none that can be read. Deletes it."""
    try:
        written = report.read_text()
        report.unlink()
        return StartFailure(**json.loads(written))
    except (OSError, ValueError, TypeError):
        return None


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
            log.info("waiting for the worker to finish its job; press Ctrl-C again to stop immediately")
        for child in children:
            child.stop()
