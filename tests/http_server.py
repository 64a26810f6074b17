"""HTTP servers of tests: on a free port of loopback, in a thread."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Keeps connections open and logs nothing. Subclasses define `do_GET` and the like."""

    protocol_version = "HTTP/1.1"

    def read_body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status, body=b"", headers=None):
        """Send a whole response; text is sent in UTF-8."""
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_arguments):
        pass


class HttpServer(ThreadingHTTPServer):
    """Serves from the start until it is closed."""

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def close(self):
        self.shutdown()
        self._thread.join()
        self.server_close()
