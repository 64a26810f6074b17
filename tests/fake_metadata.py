"""The EC2 instance metadata service (IMDSv2) on this machine, for spot notices."""

import json
import secrets
import time

from tests.http_server import Handler, HttpServer

NOTICE = "/latest/meta-data/spot/instance-action"


class FakeMetadata:
    """Answers 401 without a valid token, 404 without a notice."""

    def __init__(self):
        self.tokens, self.asked, self._notice = [], 0, None
        self._server = HttpServer(self._handler())
        self.url, self.close = self._server.url, self._server.close

    def interrupt(self, seconds=120):
        """Announce that the instance ends in this many seconds. Returns when: whole seconds since 1970."""
        ends_at = int(time.time() + seconds)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends_at))
        self._notice = {"action": "terminate", "time": when}
        return ends_at

    def expire_tokens(self):
        self.tokens.clear()

    def _handler(self):
        fake = self

        class MetadataHandler(Handler):
            def do_PUT(self):
                assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
                fake.tokens.append(secrets.token_hex(8))
                self.answer(200, fake.tokens[-1])

            def do_GET(self):
                fake.asked += 1
                if self.headers.get("X-aws-ec2-metadata-token") not in fake.tokens:
                    self.answer(401)
                elif self.path != NOTICE or fake._notice is None:
                    self.answer(404)
                else:
                    self.answer(200, json.dumps(fake._notice))

        return MetadataHandler
