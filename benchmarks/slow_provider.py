"""The provider of bench_managed: an OpenAI-compatible endpoint whose videos stay in progress until /release.

It prints its port on stdout and serves until it is stopped.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CLIP = b"\0" * (256 << 10)
MODEL = {
    "id": "bench",
    "limits": {
        "size": {
            "default": "1280x720",
            "multiple": 1,
            "min_side": 1,
            "max_side": 10_000,
            "max_pixels": 100_000_000,
        },
        "seconds": {"default": 5, "min": 0.1, "max": 600},
        "sources": [],
    },
}


class SlowProvider(ThreadingHTTPServer):
    """One video per idempotency key; counts videos and polls."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.videos: dict[str, str] = {}
        self.polls = 0
        self.is_released = False

    def create(self, key: str) -> str:
        with self.lock:
            return self.videos.setdefault(key, f"video_{len(self.videos)}")


class Handler(BaseHTTPRequestHandler):
    """The requests that the HTTP provider sends, and /stats and /release for the benchmark."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each response on a kept connection waits 40 ms for an ACK
    server: SlowProvider

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/release":
            self.server.is_released = True
            self._send_json({})
            return
        self._send_json(
            {"id": self.server.create(self.headers.get("Idempotency-Key", "")), "status": "queued"}
        )

    def do_GET(self) -> None:
        if self.path.endswith("/content"):
            self._send(CLIP, "video/mp4")
        elif self.path == "/v1/models":
            self._send_json({"data": [MODEL]})
        elif self.path == "/stats":
            self._send_json({"videos": len(self.server.videos), "polls": self.server.polls})
        else:
            with self.server.lock:
                self.server.polls += 1
            status = "completed" if self.server.is_released else "in_progress"
            self._send_json({"id": self.path.rpartition("/")[2], "status": status, "progress": 50})

    def do_DELETE(self) -> None:
        self._send_json({"deleted": True})

    def _send_json(self, fields: dict[str, object]) -> None:
        self._send(json.dumps(fields).encode(), "application/json")

    def _send(self, data: bytes, media_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
        """Logs nothing."""


if __name__ == "__main__":
    server = SlowProvider()
    print(server.server_port, flush=True)
    server.serve_forever()
