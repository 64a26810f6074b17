"""The EC2 instance metadata service (IMDSv2) on this machine, for spot notices."""

import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NOTICE = "/latest/meta-data/spot/instance-action"


class FakeMetadata:
    """Answers 401 without a valid token, 404 without a notice."""

    def __init__(self):
        self.tokens, self.asked, self._notice = [], 0, None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def interrupt(self, seconds=120):
        """Announce that the instance ends in this many seconds. Returns when: whole seconds since 1970."""
        ends_at = int(time.time() + seconds)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends_at))
        self._notice = {"action": "terminate", "time": when}
        return ends_at

    def expire_tokens(self):
        self.tokens.clear()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self):
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self):
                assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
                fake.tokens.append(secrets.token_hex(8))
                self._answer(200, fake.tokens[-1])

            def do_GET(self):
                fake.asked += 1
                if self.headers.get("X-aws-ec2-metadata-token") not in fake.tokens:
                    self._answer(401, "")
                elif self.path != NOTICE or fake._notice is None:
                    self._answer(404, "")
                else:
                    self._answer(200, json.dumps(fake._notice))

            def _answer(self, status, text):
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        return Handler
