"""`filmgate serve` as a process of its own, rendering with the miniature unless told otherwise."""

import os
import re
import signal
import subprocess
import sys
import time

import psutil

from tests.service import MODELS

COMMAND = [sys.executable, "-m", "filmgate", "serve", "--port", "0"]


class ServerProcess:
    """A server process and what it said at the start."""

    def __init__(self, folder, *options, model="miniature", **environ):
        self.folder = folder
        self.log = folder / "serve.log"
        given = {
            "FILMGATE_DATA": str(folder / "data"),
            "FILMGATE_ADMISSION__DEFAULT_MODEL": model,
            "FILMGATE_ADMISSION__MODELS_FILE": str(MODELS),
            "FILMGATE_STORE__MIN_FREE_BYTES": "0",
            "FILMGATE_WORKER__POLL_SECONDS": "0.05",
        }
        with self.log.open("wb") as log:
            environ = os.environ | given | environ
            self.process = subprocess.Popen([*COMMAND, *options], stderr=log, env=environ)

    def said(self, pattern, seconds=60):
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.log.read_text(), re.DOTALL)):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return match

    def worker(self):
        children = psutil.Process(self.process.pid).children()
        alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
        return alive[0] if alive else None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)
