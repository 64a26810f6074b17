"""An S3-like HTTP server with a known rate per connection, for tests and benchmarks of the model cache.

A real bucket is limited by the network and an emulator by its CPU.
"""

import os
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

CHUNKS_PER_SECOND = 50


class RatedBucket(ThreadingHTTPServer):
    """Serves the files under a folder as one bucket: GET with ranges, limited per connection."""

    daemon_threads = True

    def __init__(self, folder, bytes_per_second):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.bytes_per_second = bytes_per_second
        self.sent = Counter()  # body bytes by file name
        self.lock = threading.Lock()
        self.active = 0
        self.peak_active = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def running(self):
        """Serve until the block ends. boto3 finds credentials in it, which this server does not check."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        credentials = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        try:
            with patch.dict(os.environ, credentials):
                yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    @contextmanager
    def counted(self):
        """Counts one response that is being sent."""
        with self.lock:
            self.active += 1
            self.peak_active = max(self.peak_active, self.active)
        try:
            yield
        finally:
            with self.lock:
                self.active -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RatedBucket

    def do_GET(self):
        path = self.server.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if not path.is_file():
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", path.name)
            return
        size = path.stat().st_size
        begin, end = self._range(size)
        with path.open("rb") as file:
            file.seek(begin)
            body = file.read(end - begin)
        if "Range" in self.headers:
            self._answer(206, body, path.name, f"bytes {begin}-{end - 1}/{size}")
        else:
            self._answer(200, body, path.name)

    def _range(self, size):
        begin, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        return int(begin), min(int(last or size) + 1, size)

    def _answer(self, status, body, name, content_range=""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        try:
            with self.server.counted():
                self._write(body, name)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # a test killed the client

    def _write(self, body, name):
        rate = self.server.bytes_per_second
        step = max(1, int(rate / CHUNKS_PER_SECOND))
        started = time.monotonic()
        for place in range(0, len(body), step):
            self.wfile.write(body[place : place + step])
            with self.server.lock:
                self.server.sent[name] += len(body[place : place + step])
            time.sleep(max(0.0, (place + step) / rate - (time.monotonic() - started)))

    def log_message(self, *_arguments):
        pass
