"""`filmgate serve` as a separate process."""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import psutil

from tests.forks import start_process
from tests.service import MODELS
from tests.waiting import wait_until

COMMAND = [sys.executable, "-m", "filmgate", "serve", "--port", "0"]


def free_port():
    """A port that no process listens on. Systems give ports from 32768 on to sockets that ask for any."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class ServerProcess:
    """A server process and its log. It renders with the miniature model by default.

    Without a `command` it is forked from a process that has imported everything.
    """

    def __init__(self, folder, *options, model="miniature", command=None, **environ):
        self.folder = folder
        self.log = folder / "serve.log"
        settings = {
            "FILMGATE_DATA": str(folder / "data"),
            "FILMGATE_ADMISSION__DEFAULT_MODEL": model,
            "FILMGATE_ADMISSION__MODELS_FILE": str(MODELS),
            "FILMGATE_ADMISSION__SCALE_FROM_ZERO": "*",
            "FILMGATE_STORE__MIN_FREE_BYTES": "0",
            "FILMGATE_QUEUE__POLL_SECONDS": "0.05",
            # Tests send requests faster than clients.
            "FILMGATE_LIMITS__TENANT_REQUESTS_PER_SECOND": "0",
            "FILMGATE_LIMITS__ADDRESS_REQUESTS_PER_SECOND": "0",
        }
        self.log.write_bytes(b"")
        environ = settings | environ
        if command is None:
            options = ("serve", "--port", "0", *options)
            self.process = start_process("filmgate", *options, environ=environ, log=self.log)
        else:
            with self.log.open("wb") as log:
                self.process = subprocess.Popen([*command, *options], stderr=log, env=os.environ | environ)

    @property
    def url(self):
        return self.wait_for_log(r"Filmgate is listening on (\S+)")[1]

    @property
    def key(self):
        """The API key of the tenant `local`."""
        self.wait_for_log("Filmgate is listening")
        return (self.folder / "data" / "local.key").read_text().strip()

    @property
    def headers(self):
        return {"Authorization": f"Bearer {self.key}"}

    def wait_for_log(self, pattern):
        """Wait until the log matches the pattern; returns the match."""

        def find():
            match = re.search(pattern, self.log.read_text(), re.DOTALL)
            assert match or self.process.poll() is None, self.log.read_text()
            return match

        return wait_until(find, describe=self.log.read_text)

    def worker(self):
        """The worker child process, or None."""
        children = psutil.Process(self.process.pid).children()
        alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        return alive[0] if alive else None

    def stop(self):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)
