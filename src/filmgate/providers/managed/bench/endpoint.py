"""A provider that never hurries: an OpenAI-compatible endpoint in a process of its own, for the bench.

Clips stay in progress until somebody asks for /release. It prints its port and answers until it is ended.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_CLIP = b"\0" * (256 << 10)
_MODEL = {
    "id": "bench",
    "limits": {
        "size": {"multiple": 1, "min_side": 1, "max_side": 10_000, "max_pixels": 100_000_000},
        "seconds": {"min": 0.1, "max": 600},
        "sources": [],
    },
}


class Desk:
    """What the endpoint remembers: one video for each idempotency key."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.videos: dict[str, str] = {}
        self.polls = 0
        self.is_released = False

    def create(self, key: str) -> str:
        with self.lock:
            return self.videos.setdefault(key, f"video_{len(self.videos)}")


class Handler(BaseHTTPRequestHandler):
    """The few verbs a provider needs."""

    protocol_version = "HTTP/1.1"
    desk = Desk()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/release":
            self.desk.is_released = True
        self._say({"id": self.desk.create(self.headers.get("Idempotency-Key", "")), "status": "queued"})

    def do_GET(self) -> None:
        if self.path.endswith("/content"):
            self._send(_CLIP, "video/mp4")
        elif self.path == "/v1/models":
            self._say({"data": [_MODEL]})
        elif self.path == "/stats":
            self._say({"videos": len(self.desk.videos), "polls": self.desk.polls})
        else:
            self.desk.polls += 1
            status = "completed" if self.desk.is_released else "in_progress"
            self._say({"id": self.path.rpartition("/")[2], "status": status, "progress": 50})

    def do_DELETE(self) -> None:
        self._say({"deleted": True})

    def _say(self, fields: dict[str, object]) -> None:
        self._send(json.dumps(fields).encode(), "application/json")

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Nothing: the bench reads our stdout."""


def main() -> None:
    """Serve on any free port of this machine alone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
