"""Starts processes of Filmgate in milliseconds: this process has imported everything and forks.

Reads one JSON object per line. {"module", "arguments", "environ", "folder", "output", "errors"} runs
`python -m MODULE ARGUMENTS` in a new process, which appends to the two files, and is answered with its pid;
{"wait": PID} is answered with its exit status, or null while it runs. Ends with its processes when stdin is
closed. `tests.forks` is the client.
"""

import faulthandler
import importlib
import json
import os
import runpy
import signal
import sys

import psutil

from filmgate import worker_process
from filmgate.scheduling import forecast, workers

WORKER_TIMEOUT = "FILMGATE_TEST_WORKER_TIMEOUT"
"""A variable: after how many seconds of silence a worker counts as dead, if less than usual."""

# What servers and workers import before they are ready.
PRELOADED = (
    "boto3",
    "psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "filmgate.cli",
    "filmgate.database.migration",
    "filmgate.models.weights",
    "filmgate.providers.http",
    "filmgate.server",
    "filmgate.store.local.store",
    "filmgate.tenants.registry",
    "tests.pattern_runner",
    "filmgate.worker_process",
)


def run_child(module, arguments, environ, folder, output, errors):
    # Not the lines that the parent reads and writes.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), number)
    # A soak that makes no progress asks for the stacks of all threads.
    faulthandler.register(signal.SIGUSR1)
    os.environ.clear()
    os.environ.update(environ)
    if seconds := environ.get(WORKER_TIMEOUT):
        workers.TIMEOUT_SECONDS = forecast.TIMEOUT_SECONDS = float(seconds)
        worker_process.HEARTBEAT_SECONDS = float(seconds) / 6
    os.chdir(folder)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def find_status(pid):
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def main():
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer = find_status(asked["wait"])
        elif (answer := os.fork()) == 0:
            # The interpreter ends as usual: what is open is closed and written.
            run_child(**asked)
            return
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    for child in psutil.Process().children():
        child.kill()


if __name__ == "__main__":
    main()
