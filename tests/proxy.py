"""An HTTP proxy that adds what an emulator lacks: errors, broken connections and signature checks."""

import hmac
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection
from urllib.parse import parse_qs, urlsplit

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.http_server import Handler, HttpServer

HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclass
class Fault:
    """What the first `times` matching requests get: an error, another body or a closed connection."""

    pattern: str
    status: int = 0
    body: bytes = b""
    cut_after_bytes: int | None = None
    instead: bytes | None = None
    times: int = 1 << 30
    hits: int = 0

    def takes(self, request: str) -> bool:
        return self.hits < self.times and re.search(self.pattern, request) is not None


def s3_error(code, status=403, message="", **where):
    """An error response of S3."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return {"status": status, "body": body} | where


def kms_error(code, message="", status=400):
    """An error response of KMS."""
    return {"status": status, "body": f'{{"__type":"{code}","message":"{message}"}}'.encode()}


@dataclass
class Proxy:
    """Forwards requests unless a fault or the guard applies. Records them in `requests`."""

    target: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    guard: Callable[[str, str], str | None] | None = None

    def __enter__(self):
        proxy = self

        class ProxyHandler(_Handler):
            owner = proxy

        self._server = HttpServer(ProxyHandler)
        self.url = self._server.url
        return self

    def __exit__(self, *_):
        self._server.close()

    def fail(self, pattern, **how):
        self.faults.append(Fault(pattern, **how))
        return self.faults[-1]

    def alter(self, pattern, content):
        """Forward the headers but replace the body with another of the same length."""
        return self.fail(pattern, instead=content)

    def heal(self):
        self.faults.clear()


class _Handler(Handler):
    owner: Proxy

    def _serve(self):
        owner = self.owner
        body = self.read_body()
        # KMS names the operation in a header, S3 in method and URL.
        request = f"{self.headers.get('X-Amz-Target', '')} {self.command} {self.path}".strip()
        owner.requests.append(request)
        fault = next((fault for fault in owner.faults if fault.takes(request)), None)
        if fault is not None:
            fault.hits += 1
        if owner.guard and (reason := owner.guard(self.command, f"http://{self.headers['Host']}{self.path}")):
            self._answer(403, {}, reason.encode())
        elif fault is None:
            self._answer(*self._forward(body))
        elif fault.status:
            self._answer(fault.status, {"Content-Type": "application/xml"}, fault.body)
        elif fault.instead is not None:
            status, headers, _ = self._forward(body)
            self._answer(status, headers, fault.instead)
        elif fault.cut_after_bytes is None:
            self.close_connection = True
        else:
            self._answer(*self._forward(body), cut_after_bytes=fault.cut_after_bytes)

    def _forward(self, body):
        with closing(HTTPConnection(urlsplit(self.owner.target).netloc, timeout=30)) as connection:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP}
        if self.command == "HEAD":
            headers["Content-Length"] = answer.getheader("Content-Length")
        return answer.status, headers, content

    def _answer(self, status, headers, content, cut_after_bytes=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[:cut_after_bytes])
        self.close_connection = self.close_connection or cut_after_bytes is not None

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve


@dataclass
class LinkGuard:
    """Checks the signature and the expiry of a presigned URL as S3 does."""

    secret: str
    region: str
    clock: Callable[[], float] = time.time

    def __call__(self, method, url):
        """The reason to reject the request, or None."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        if "X-Amz-Signature" not in query:
            return None
        signed_at = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if self.clock() > signed_at.timestamp() + int(query["X-Amz-Expires"]):
            return "Request has expired"
        if not hmac.compare_digest(query["X-Amz-Signature"], self._signature(method, url, query)):
            return "SignatureDoesNotMatch"
        return None

    def _signature(self, method, url, query):
        unsigned = re.sub(r"[?&]X-Amz-Signature=[0-9a-f]*", "", url)
        request = AWSRequest(method=method, url=unsigned)
        request.context["timestamp"] = query["X-Amz-Date"]
        signer = S3SigV4QueryAuth(Credentials("testing", self.secret), "s3", self.region)
        canonical = signer.canonical_request(request)
        return signer.signature(signer.string_to_sign(request, canonical), request)
