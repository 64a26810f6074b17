"""Starts processes of Filmgate in milliseconds: this process has imported everything and forks.

Reads one JSON array per line, [role, environ, argument], and answers with the pid of the new process. Ends
with its processes when stdin is closed.
"""

import json
import os
import signal
import sys
import traceback

import psutil

from filmgate.providers import open_provider
from filmgate.server import serve
from filmgate.settings import load_settings
from filmgate.worker.pattern_runner import MODEL, PatternRunner
from filmgate.worker_process import run_managed_worker, run_worker


def run_server(settings, _argument):
    serve(settings, lambda port: None, {}, print)


def run_gpu_worker(settings, pace):
    runner = PatternRunner(pace_seconds=float(pace))
    run_worker(settings, lambda _parts: runner)


def run_managed(settings, _argument):
    run_managed_worker(settings, (MODEL,), open_provider(settings.provider))


ROLES = {"server": run_server, "worker": run_gpu_worker, "managed": run_managed}


def run_child(role, environ, argument):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Not the lines that the parent reads and writes.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.environ.update(environ)
    ROLES[role](load_settings(), argument)


def main():
    # The kernel removes ended children at once.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                run_child(*json.loads(line))
            except BaseException:  # noqa: BLE001 - the edge of the process
                traceback.print_exc()
            finally:
                os._exit(1)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for child in psutil.Process().children():
        child.kill()


if __name__ == "__main__":
    main()
