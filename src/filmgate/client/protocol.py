"""What both clients share: requests as values, responses as types, retries. No I/O except reading files."""

import mimetypes
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx

from filmgate.client.errors import RequestFailed, VideoFailed
from filmgate.errors import UsageError

DEFAULT_URL = "http://127.0.0.1:8000"
MAX_ATTEMPTS = 5
MIN_POLL_SECONDS = 0.25
# How long the server waits for the first fragment of a stream.
FIRST_FRAGMENT_SECONDS = 300.0
_RETRIED = frozenset({408, 429, 502, 503, 504})
_NO_RESPONSE_BEHIND_PROXY = frozenset({502, 504})
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_MAX_DELAY_SECONDS = 30.0

T = TypeVar("T")
Variant = Literal["video", "thumbnail", "spritesheet"]


@dataclass(frozen=True, slots=True)
class Video:
    """A video of the service. `fields` has everything the server sent."""

    id: str
    status: str
    progress: int
    model: str
    size: str
    seconds: str
    created_at: int
    stage: str | None = None
    eta_seconds: float | None = None
    queue_position: int | None = None
    failure: str | None = None
    warnings: tuple[str, ...] = ()
    poll_seconds: float = 1.0
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_final(self) -> bool:
        return self.status in ("completed", "failed")

    @property
    def summary(self) -> str:
        """The state in a few words, for people."""
        match self.status:
            case "completed":
                return "completed"
            case "failed":
                return f"failed: {self.failure}"
            case "queued" if self.eta_seconds is None:
                return "waiting for a worker"
            case "queued" if self.queue_position is None:  # a worker has it and begins
                return f"starting, about {self.eta_seconds:.0f} s left"
            case "queued":
                return f"queued, position {self.queue_position}, about {self.eta_seconds:.0f} s left"
        left = "" if self.eta_seconds is None else f", about {self.eta_seconds:.0f} s left"
        return f"{self.stage or 'running'}, {self.progress} %{left}"


@dataclass(frozen=True, slots=True)
class VideoList:
    """One page of videos; `next_after` is the cursor of the next page, None on the last one."""

    videos: tuple[Video, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the API. A retry sends the same call, so it is the same job."""

    method: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    is_streamed: bool = False


def create_call(prompt: str, image: str | Path | None, options: Mapping[str, Any]) -> Call:
    """POST /v1/videos with an idempotency key."""
    sent = {"prompt": prompt} | {name: str(value) for name, value in options.items() if value is not None}
    files = {"input_reference": read_image(Path(image))} if image is not None else None
    headers = {"Idempotency-Key": secrets.token_hex(16)}
    return Call("POST", "/v1/videos", {"data": sent, "files": files, "headers": headers})


def waiting_call(video: Video | str, seconds: float, timeout: httpx.Timeout) -> Call:
    """GET /v1/videos/{id}, answered when the video ends or after this time, in whole seconds."""
    wait = max(round(seconds), 1)
    options = {"headers": {"Prefer": f"wait={wait}"}, "timeout": _longer(timeout, wait)}
    return Call("GET", path_of(video), options)


def has_waited(response: httpx.Response) -> bool:
    """Whether the server waited as `waiting_call` asked."""
    return "wait" in response.headers.get("preference-applied", "")


def content_call(video: Video | str, variant: Variant) -> Call:
    return Call("GET", f"{path_of(video)}/content", {"params": {"variant": variant}}, is_streamed=True)


def stream_call(video: Video | str, timeout: httpx.Timeout) -> Call:
    """GET /v1/videos/{id}/stream, answered when decoding begins or after FIRST_FRAGMENT_SECONDS."""
    options = {"timeout": _longer(timeout, FIRST_FRAGMENT_SECONDS)}
    return Call("GET", f"{path_of(video)}/stream", options, is_streamed=True)


def _longer(timeout: httpx.Timeout, seconds: float) -> httpx.Timeout:
    """The timeout for a server that sends nothing while it waits for so many seconds."""
    return httpx.Timeout(**timeout.as_dict() | {"read": timeout.read and timeout.read + seconds})


def read_image(path: Path) -> tuple[str, bytes, str]:
    """The file as httpx uploads it."""
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}", option="image") from exc
    return path.name, data, mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def read_key_file(path: Path, option: str = "api_key") -> str:
    """The API key in a file. Raises UsageError that names `option`."""
    reason: str | None = "it contains no key"
    try:
        words = path.read_text(encoding="ascii").split()
    except OSError as exc:
        words, reason = [], exc.strerror
    except UnicodeDecodeError:
        words = []
    if len(words) != 1:
        raise UsageError(
            f"{path} cannot be read: {reason}; give a file that contains an API key, such as local.key "
            "in the data folder of `filmgate serve`",
            option=option,
        )
    return words[0]


def check_url(url: str) -> str:
    """The address of a server, without /v1. Raises UsageError."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UsageError(f"{url!r} is not the URL of a server, such as {DEFAULT_URL}")
    return url.removesuffix("/").removesuffix("/v1")


def delay_before_retry(response: httpx.Response | None, attempt: int) -> float | None:
    """Seconds before the next attempt; None for no retry. Without a response, the connection failed."""
    if attempt >= MAX_ATTEMPTS:
        return None
    if response is not None:
        should_retry = response.headers.get("x-should-retry")
        if should_retry == "false" or (should_retry != "true" and response.status_code not in _RETRIED):
            return None
    after = response.headers.get("retry-after", "") if response is not None else ""
    return min(float(after) if after.isdecimal() else 0.25 * 2**attempt, _MAX_DELAY_SECONDS)


def is_response_lost(answer: httpx.Response | Exception | None) -> bool:
    """Whether the server may have done what was asked although its response did not arrive."""
    if isinstance(answer, httpx.Response):
        return answer.status_code in _NO_RESPONSE_BEHIND_PROXY
    return not isinstance(answer, _NEVER_SENT)


def failure_of(response: httpx.Response) -> RequestFailed:
    """The error in a response whose body was read."""
    status, request_id = response.status_code, response.headers.get("x-request-id", "")
    try:
        error = response.json()["error"]
        message, reason = error["message"], error["code"] or ""
    except (ValueError, KeyError, TypeError):
        message, reason = f"the server responded with HTTP {status}", ""
    return RequestFailed(message, status=status, reason=reason, request_id=request_id)


def connection_lost(url: str, error: Exception) -> RequestFailed:
    return RequestFailed(
        f"the connection to {url} was lost: {_explain(error)}; try again", reason="connection_lost"
    )


def unreachable(url: str, error: Exception | None) -> RequestFailed:
    return RequestFailed(
        f"{url} cannot be reached: {_explain(error)}; is `filmgate serve` running there?",
        reason="unreachable",
    )


def _explain(error: Exception | None) -> str:
    return str(error) or type(error).__name__


def stream_ended() -> httpx.RequestError:
    """The error of an event stream that ended before its video."""
    return httpx.RemoteProtocolError("the event stream ended before the video")


def to_video(response: httpx.Response) -> Video:
    """The video in a response."""
    after = response.headers.get("openai-poll-after-ms", "")
    seconds = int(after) / 1000 if after.isdecimal() else 1.0
    return read_body(response, lambda body: read_video(body, max(seconds, MIN_POLL_SECONDS)))


def read_video(body: Mapping[str, Any], poll_seconds: float = 1.0) -> Video:
    error = body.get("error") or {}
    return Video(
        id=body["id"],
        status=body["status"],
        progress=body["progress"],
        model=body["model"],
        size=body["size"],
        seconds=body["seconds"],
        created_at=body["created_at"],
        stage=body.get("stage"),
        eta_seconds=body.get("eta_seconds"),
        queue_position=body.get("queue_position"),
        failure=error.get("message"),
        warnings=tuple(body.get("warnings", ())),
        poll_seconds=poll_seconds,
        fields=body,
    )


def to_list(response: httpx.Response) -> VideoList:
    def read(body: Mapping[str, Any]) -> VideoList:
        videos = tuple(read_video(each) for each in body["data"])
        return VideoList(videos, body["last_id"] if body["has_more"] else None)

    return read_body(response, read)


def read_body(response: httpx.Response, read: Callable[[Any], T]) -> T:
    """What `read` finds in the JSON body. Raises RequestFailed for the response of another service."""
    try:
        return read(response.json())
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        message = f"{response.url} did not respond as Filmgate does; check the URL of the server"
        raise RequestFailed(message, status=response.status_code, reason="unexpected_response") from exc


def require_completed(video: Video) -> Video:
    """The video. Raises VideoFailed if it failed."""
    if video.status == "failed":
        raise VideoFailed(f"{video.id} failed: {video.failure}")
    return video


def path_of(video: Video | str) -> str:
    return f"/v1/videos/{quote(video if isinstance(video, str) else video.id, safe='')}"
