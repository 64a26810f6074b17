"""A fake Bedrock: the async-invoke API over HTTP, clips written to moto's S3, errors on demand.

It counts billed invocations: one per client token, also when it is started several times.
"""

import json
import secrets
import threading
import time
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from io import BytesIO
from itertools import count
from urllib.parse import unquote, urlsplit

import pytest

from tests.http_server import Handler, HttpServer
from tests.waiting import wait_until

ACCOUNT = "123456789012"
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-west-2"}
ENVIRON = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}
ERRORS = {
    "throttle": (429, "ThrottlingException"),
    "quota": (400, "ServiceQuotaExceededException"),
    "down": (503, "ServiceUnavailableException"),
    "broken": (500, "InternalServerException"),
    "invalid": (400, "ValidationException"),
    "denied": (403, "AccessDeniedException"),
    "gone": (404, "ResourceNotFoundException"),
}


@pytest.fixture(scope="session")
def moto(aws_url):
    """The address of moto's server. Each test uses its own bucket."""
    return aws_url


@pytest.fixture(scope="module")
def clip_bucket(moto):
    """An empty, versioned bucket for clips."""
    name, s3 = f"clips-{secrets.token_hex(4)}", s3_client(moto)
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return name


@cache
def s3_client(url):
    import boto3

    return boto3.client("s3", endpoint_url=url, **KEYS)


@cache
def make_mp4(frames=12, width=64, height=48):
    """A small, valid MP4."""
    import av
    import numpy as np

    out = BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            picture = np.full((height, width, 3), number * 20 % 256, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    return out.getvalue()


@dataclass
class Billed:
    """One billed invocation."""

    arn: str
    token: str
    body: dict
    status: str = "InProgress"
    ready_at: float = 0.0

    @property
    def output(self):
        url = urlsplit(self.body["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"])
        return url.netloc, f"{url.path.strip('/')}/{self.arn.rpartition('/')[2]}"


@dataclass
class FakeBedrock:
    """The endpoint. `start_error`, `poll_error` and `model_error` name an error; a clip takes `seconds`."""

    s3_url: str
    seconds: float = 0.05
    start_error: str | None = None
    poll_error: str | None = None
    model_error: str | None = "denied"
    is_silent: bool = False  # jobs start, but no start is answered
    outcome: str = "Completed"
    clip: bytes = b""
    end_of_life: str | None = None
    polls: int = 0
    model_requests: int = 0
    starts: list[str] = field(default_factory=list)
    paid: dict[str, Billed] = field(default_factory=dict)

    def __post_init__(self):
        self.lock = threading.Lock()
        self.numbers = count()
        self.s3 = s3_client(self.s3_url)
        server = HttpServer(self._handler())
        self.url, self.close = server.url, server.close

    def reset(self):
        """Restore the defaults for the next test."""
        fresh = {f.name: f.default for f in fields(self) if f.default is not MISSING}
        for name, value in (fresh | {"starts": [], "paid": {}}).items():
            setattr(self, name, value)

    def files(self, bucket):
        """Keys of all object versions and delete markers in the bucket."""
        page = self.s3.list_object_versions(Bucket=bucket)
        return [one["Key"] for one in (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))]

    def finish(self):
        """Complete all clips now."""
        self.seconds = 0.0
        for paid in list(self.paid.values()):
            paid.ready_at = 0.0

    def start(self, body):
        with self.lock:
            self.starts.append(body["clientRequestToken"])
            if self.start_error:
                return ERRORS[self.start_error]
            known = self.paid.get(body["clientRequestToken"])
            if known is not None and known.body != body:
                return 400, "ConflictException"
            if known is None:
                arn = f"arn:aws:bedrock:us-west-2:{ACCOUNT}:async-invoke/{next(self.numbers):012d}"
                known = Billed(
                    arn, body["clientRequestToken"], body, ready_at=time.monotonic() + self.seconds
                )
                self.paid[known.token] = known
        wait_until(lambda: not self.is_silent)
        return 200, {"invocationArn": known.arn}

    def get(self, arn):
        with self.lock:
            self.polls += 1
            known = next((paid for paid in self.paid.values() if paid.arn == arn), None)
            if self.poll_error or known is None:
                return ERRORS[self.poll_error or "invalid"]
            if known.status == "InProgress" and time.monotonic() >= known.ready_at:
                known.status = self.outcome
                if known.status == "Completed":
                    self._write(known)
            bucket, folder = known.output
            answer = {
                "invocationArn": arn,
                "modelArn": "arn:aws:bedrock:us-west-2::foundation-model/luma.ray-v2:0",
                "clientRequestToken": known.token,
                "status": known.status,
                "submitTime": "2026-11-15T06:00:00Z",
                "outputDataConfig": {"s3OutputDataConfig": {"s3Uri": f"s3://{bucket}/{folder}"}},
            }
            return 200, answer | ({"failureMessage": "blocked"} if known.status == "Failed" else {})

    def model(self, _name):
        self.model_requests += 1
        if self.model_error:
            return ERRORS[self.model_error]
        life = {"status": "LEGACY" if self.end_of_life else "ACTIVE"}
        life |= {"endOfLifeTime": self.end_of_life} if self.end_of_life else {}
        details = {"modelArn": "arn:aws:bedrock:us-west-2::foundation-model/m", "modelId": "m"}
        return 200, {"modelDetails": details | {"modelLifecycle": life}}

    def _write(self, paid):
        bucket, folder = paid.output
        for name, data in (
            ("output.mp4", self.clip or make_mp4()),
            ("manifest.json", b"{}"),
            ("generation-status.json", b"{}"),
        ):
            self.s3.put_object(Bucket=bucket, Key=f"{folder}/{name}", Body=data)

    def _handler(bedrock):  # noqa: N805 - `self` is the handler below
        class BedrockHandler(Handler):
            def do_POST(self):
                self.send(*bedrock.start(json.loads(self.read_body())))

            def do_GET(self):
                path = unquote(urlsplit(self.path).path)
                if path.startswith("/foundation-models/"):
                    self.send(*bedrock.model(path))
                elif path == "/async-invoke":
                    self.send(200, {"asyncInvokeSummaries": []})
                else:
                    self.send(*bedrock.get(path.removeprefix("/async-invoke/")))

            def send(self, status, content):
                headers = {"Content-Type": "application/json"}
                if isinstance(content, str):
                    headers["x-amzn-ErrorType"] = content
                    content = {"message": "text that quotes a prompt"}
                self.answer(status, json.dumps(content), headers)

        return BedrockHandler
