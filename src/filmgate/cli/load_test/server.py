"""The server of a load test: `filmgate serve` with a worker, on loopback, in its own folder."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filmgate.errors import UsageError

START_SECONDS = 900.0
_STOP_SECONDS = 60.0
_ADDRESS = re.compile(r"Filmgate is listening on (\S+)")
# A load test is one caller with many requests, and it may queue for longer than any promise.
_UNLIMITED = {
    "FILMGATE_LIMITS__TENANT_REQUESTS_PER_SECOND": "0",
    "FILMGATE_LIMITS__ADDRESS_REQUESTS_PER_SECOND": "0",
    "FILMGATE_LIMITS__MAX_WATCHERS_PER_TENANT": "0",
    "FILMGATE_ADMISSION__PROMISE_SECONDS": "1e9",
    "FILMGATE_ADMISSION__SCALE_FROM_ZERO": "*",
}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its address and the key of its local tenant."""

    url: str
    key: str
    data: Path | None = None


@contextmanager
def started_server(
    models: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server and its worker until the block ends. Raises UsageError with the end of its log."""
    data, log = folder / "data", folder / "serve.log"
    command = [sys.executable, "-m", "filmgate", "serve", "--port", "0", "--data", str(data)]
    command += [part for model in models for part in ("--model", model)]
    variables = {**os.environ, **_UNLIMITED, **(environ or {})}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=variables, stderr=output, stdout=output) as process,
    ):
        try:
            url = _wait_for_address(process, log)
            yield Server(url, (data / "local.key").read_text().strip(), data)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for_address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        if match := _ADDRESS.search(log.read_text(errors="replace")):
            return match[1]
        time.sleep(0.1)
    raise UsageError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
