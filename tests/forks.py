"""Processes of Filmgate that start without importing everything again: `tests.fork_server` forks them.

They are processes like any other: with a pid, signals, memory and an environment of their own. A test of the
command itself starts it with `subprocess`.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]


class ForkServer:
    """The parent of the forked processes. Threads may share it."""

    def __init__(self):
        command = [sys.executable, "-m", "tests.fork_server"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        self._lock = threading.Lock()

    def ask(self, **question):
        with self._lock:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.communicate(timeout=60)


@cache
def fork_server():
    """The fork server of this process, which ends with it."""
    server = ForkServer()
    atexit.register(server.close)
    return server


class ForkedProcess:
    """What the tests use of `subprocess.Popen`, for a process of the fork server."""

    def __init__(self, server, pid):
        self._server, self.pid, self.returncode = server, pid, None

    def poll(self):
        if self.returncode is None:
            self.returncode = self._server.ask(wait=self.pid)
        return self.returncode

    def wait(self, timeout=None):
        if self.poll() is None:
            # The pid is valid until the fork server is asked for the status of the ended process.
            ended = os.pidfd_open(self.pid)
            try:
                if not select.select([ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            finally:
                os.close(ended)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def start_process(module, *arguments, environ, log, folder=ROOT, output=None):
    """Run `python -m MODULE ARGUMENTS` with these variables beside our own.

    Appends its stderr to `log`, and its stdout to `output` if that is given, else to `log` too.
    """
    server = fork_server()
    Path(log).touch()
    pid = server.ask(
        module=module,
        arguments=list(map(str, arguments)),
        environ=os.environ | environ,
        folder=str(folder),
        output=str(output or log),
        errors=str(log),
    )
    return ForkedProcess(server, pid)


def run_process(module, *arguments, environ=None, folder=ROOT, timeout=120):
    """Run `python -m MODULE ARGUMENTS` to its end; returns exit code, stdout and stderr."""
    with TemporaryDirectory() as found:
        output, log = Path(found, "output"), Path(found, "errors")
        process = start_process(
            module, *arguments, environ=environ or {}, folder=folder, output=output, log=log
        )
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, code, output.read_text(), log.read_text())
