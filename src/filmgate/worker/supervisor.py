"""Worker child processes of the server: restarted when they die, stopped with the server."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from filmgate.telemetry.logs import Log

log = Log("serve")

# The delay before a restart: short at first, longer while the worker keeps dying.
_RESTART_SECONDS = (0.5, 30.0)
_STABLE_SECONDS = 60.0
_STOP_SECONDS = 40.0
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

    def __init__(self, data: Path, options: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "filmgate", "worker", *options]
        self._environ = os.environ | {"FILMGATE_DATA": str(data)}
        self._is_stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_running, name="worker-child", daemon=True)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

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
        delay, longest = _RESTART_SECONDS
        while not self._is_stopping.is_set():
            started = time.monotonic()
            # Own session: Ctrl-C reaches only the server, which then drains its worker.
            self._process = subprocess.Popen(
                self._command,
                start_new_session=True,
                env=self._environ,
                preexec_fn=partial(end_with_parent, os.getpid()),  # noqa: PLW1509 - two system calls, no lock
            )
            if self._is_stopping.is_set():  # `drain` was called before there was a process to signal
                self._process.send_signal(signal.SIGTERM)
            code = self._process.wait()
            if self._is_stopping.is_set():
                return
            is_stable = time.monotonic() - started > _STABLE_SECONDS
            delay = _RESTART_SECONDS[0] if is_stable else min(delay * 2, longest)
            log.warning("the worker process ended; restarting it", status=code, seconds=delay)
            self._is_stopping.wait(delay)


@contextmanager
def running_workers(data: Path, *option_lists: Sequence[str]) -> Iterator[list[WorkerChild]]:
    """One worker child per list of options, until the block ends."""
    children = [WorkerChild(data, options) for options in option_lists]
    for child in children:
        child.start()
    try:
        yield children
    finally:
        for child in children:
            child.drain()
        for child in children:
            child.stop()
