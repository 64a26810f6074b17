"""Is a pull faster than a plain download? Both from one server that, like S3, limits each connection.

The server is our own: a real bucket is bound by the network, an emulator by its CPU, and neither is here.
"""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from filmgate.models.weights.cache import ModelCache
from filmgate.models.weights.location import ModelLocation, parse_location
from filmgate.models.weights.manifest import INDEX_FILE, MANIFEST_FILE, FileRecord, build_manifest
from filmgate.models.weights.remote import Remote, open_remote
from filmgate.settings import ModelSettings

_TICKS_A_SECOND = 50


class RatedBucket(ThreadingHTTPServer):
    """Serves the files under a folder as one bucket: GET with ranges, so many bytes a second a connection."""

    daemon_threads = True

    def __init__(self, folder: Path, bytes_a_second: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.bytes_a_second = bytes_a_second
        self.sent: Counter[str] = Counter()  # body bytes by file name
        self.guard = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def running(self) -> Iterator["RatedBucket"]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RatedBucket

    def do_GET(self) -> None:
        path = self.server.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if not path.is_file():
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", path.name)
            return
        size = path.stat().st_size
        begin, end = self._wanted(size)
        with path.open("rb") as file:
            file.seek(begin)
            body = file.read(end - begin)
        if "Range" in self.headers:
            self._answer(206, body, path.name, f"bytes {begin}-{end - 1}/{size}")
        else:
            self._answer(200, body, path.name)

    def _wanted(self, size: int) -> tuple[int, int]:
        begin, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        return int(begin), min(int(last or size) + 1, size)

    def _answer(self, status: int, body: bytes, name: str, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        rate = self.server.bytes_a_second
        step = max(1, int(rate / _TICKS_A_SECOND))
        started = time.monotonic()
        try:
            for place in range(0, len(body), step):
                self.wfile.write(body[place : place + step])
                with self.server.guard:
                    self.server.sent[name] += len(body[place : place + step])
                ahead = (place + step) / rate - (time.monotonic() - started)
                if ahead > 0:
                    time.sleep(ahead)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client was killed: that is what some tests are about

    def log_message(self, *_words: object) -> None:
        """Say nothing: the figures are on stdout."""


@dataclass(frozen=True, slots=True)
class PullCost:
    """Seconds for the same bytes: one stream, and a pull with digests checked."""

    size_bytes: int
    connections: int
    stream_seconds: float
    pull_seconds: float

    @property
    def speedup(self) -> float:
        return round(self.stream_seconds / self.pull_seconds, 2)


def measure_pull(size_bytes: int, bytes_a_second: float, connections: int, rounds: int) -> PullCost:
    """The median of each, in turns against one server."""
    with TemporaryDirectory() as text:
        folder = Path(text)
        location = parse_location("s3://bench/models/random/v1/")
        weights = write_model(folder / "bucket" / location.bucket / location.prefix, size_bytes)
        with RatedBucket(folder / "bucket", bytes_a_second).running() as bucket:
            settings = ModelSettings(
                endpoint=bucket.url,
                region="us-east-1",
                connections=connections,
                range_bytes=max(1 << 16, size_bytes // (2 * connections)),
            )
            remote = open_remote(location, settings, is_anonymous=True)
            stream, pull = [], []
            for number in range(rounds):
                stream.append(_timed(partial(_download, remote, weights, folder / "plain")))
                cache = ModelCache(folder / f"cache-{number}", settings, lambda _: remote)
                pull.append(_timed(partial(_take, cache, location)))
    return PullCost(size_bytes, connections, round(median(stream), 4), round(median(pull), 4))


def write_model(folder: Path, size_bytes: int) -> FileRecord:
    """A folder of random weights, with its manifest, as a push would leave it; the record of the weights."""
    (folder / "transformer").mkdir(parents=True)
    (folder / INDEX_FILE).write_text("{}")
    (folder / "transformer/weights.safetensors").write_bytes(secrets.token_bytes(size_bytes))
    manifest = build_manifest(folder)
    (folder / MANIFEST_FILE).write_text(manifest.to_json())
    return next(file for file in manifest.files if file.size_bytes == size_bytes)


def _download(remote: Remote, file: FileRecord, target: Path) -> None:
    with target.open("wb") as out:
        for data in remote.read_whole(file):
            out.write(data)


def _take(cache: ModelCache, location: ModelLocation) -> None:
    cache.acquire(location).lock.close()


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
