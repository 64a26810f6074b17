"""Calls to an OpenAI-compatible video API.

Errors are reported by status and error code only: the API's messages may quote the request.
"""

import json
import re
import ssl
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from filmgate.errors import ProviderError, ProviderRefused, ProviderThrottled, ProviderUnusable
from filmgate.telemetry.metrics import count_throttle
from filmgate.telemetry.trace_context import TRACEPARENT, XRAY_HEADER, current_trace, trace_headers

_MAX_JSON_BYTES = 4 << 20
# httpx limits only the time between two reads: an answer that trickles in would hold a thread for hours.
_MAX_JSON_SECONDS = 120.0
_MAX_REDIRECTS = 5
_CODE = re.compile(r"[a-zA-Z0-9_.-]{1,60}")


@dataclass(frozen=True, slots=True)
class Reply:
    """A JSON object and the headers it came with."""

    fields: Mapping[str, Any]
    headers: Mapping[str, str]


class NotFound(ProviderRefused):
    """The API has no such job or method."""


class Endpoint:
    """An API and its key. Redirects are followed without the key."""

    def __init__(self, url: str, key: str, timeout_seconds: float, connections: int = 32) -> None:
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=timeout_seconds,
            limits=httpx.Limits(max_connections=connections),
            # The host's certificates, which may include a private authority; httpx has its own bundle.
            verify=ssl.create_default_context(),
        )
        # Providers have no close method: the connections are closed with this object.
        weakref.finalize(self, self._client.close)

    def call(self, method: str, path: str, **request: Any) -> Reply:
        """Call the API and parse its JSON answer; `request` as in httpx. Raises ProviderError subclasses."""
        with self._answered(method, path, **request) as answer:
            return Reply(_parse(_read(answer)), answer.headers)

    def stream(self, path: str, media: str) -> Iterator[bytes]:
        """The body of a GET as it arrives. Raises ProviderError when type or length are wrong."""
        with self._answered("GET", path, headers={"Accept": f"{media}/*, */*"}) as answer:
            kind = answer.headers.get("content-type", "").partition(";")[0].strip()
            if not kind.startswith((f"{media}/", "application/octet-stream")):
                raise ProviderError(f"the provider sent {kind or 'no content type'} instead of {media}")
            announced, received = answer.headers.get("content-length"), 0
            # Without a chunk size, which httpx would collect first: the caller checks its limits per chunk.
            for chunk in answer.iter_raw():
                received += len(chunk)
                yield chunk
        if not received or (announced is not None and int(announced) != received):
            raise ProviderError(f"the provider sent {received} of {announced} bytes")

    @contextmanager
    def _answered(self, method: str, path: str, **request: Any) -> Iterator[httpx.Response]:
        headers = {"Accept-Encoding": "identity"} | _trace_headers() | request.pop("headers", {})
        try:
            built = self._client.build_request(method, path, headers=headers, **request)
            with closing(self._send(built)) as answer:
                if answer.status_code >= 400:
                    raise _to_error(answer)
                yield answer
        except httpx.TimeoutException as exc:
            raise ProviderError(f"the provider timed out ({type(exc).__name__})") from exc
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise ProviderError(f"the provider is unreachable ({type(exc).__name__})") from exc

    def _send(self, request: httpx.Request) -> httpx.Response:
        for _ in range(1 + _MAX_REDIRECTS):
            answer = self._client.send(request, stream=True)
            if answer.next_request is None:
                return answer
            answer.close()
            request = answer.next_request
            # httpx keeps the key within a host; a signed link needs none, wherever it points.
            for name in ("Authorization", TRACEPARENT, XRAY_HEADER):
                request.headers.pop(name, None)
        raise httpx.TooManyRedirects("too many redirects", request=request)


def _trace_headers() -> dict[str, str]:
    trace = current_trace()
    return trace_headers(trace) if trace is not None else {}


def _to_error(answer: httpx.Response) -> ProviderError:
    status = f"HTTP {answer.status_code} {_error_code(answer)}".rstrip()
    match answer.status_code:
        case 404 | 405 | 410:
            return NotFound(f"the provider answered {status}")
        case 401 | 403:
            return ProviderUnusable(f"the provider rejected the API key: {status}; check provider.key_file")
        case 429:
            count_throttle("provider")
            after = answer.headers.get("retry-after", "")
            return ProviderThrottled(
                f"the provider has no capacity: {status}",
                retry_after_seconds=float(after) if after.isdecimal() else None,
            )
        case 408 | 409 | 425:
            return ProviderError(f"the provider requests a retry: {status}")
        case code if code >= 500:
            return ProviderError(f"the provider failed: {status}")
        case _:
            return ProviderRefused(f"the provider rejected the job: {status}")


def _error_code(answer: httpx.Response) -> str:
    try:
        code = _parse(_read(answer))["error"]["code"]
    except (ProviderError, httpx.HTTPError, KeyError, TypeError):
        return ""  # the status says enough
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""


def _read(answer: httpx.Response) -> bytes:
    data, ends_at = bytearray(), time.monotonic() + _MAX_JSON_SECONDS
    for chunk in answer.iter_bytes():
        data += chunk
        if len(data) > _MAX_JSON_BYTES:
            raise ProviderError("the provider's answer is too large")
        if time.monotonic() > ends_at:
            raise ProviderError(f"the provider's answer takes more than {_MAX_JSON_SECONDS:g} seconds")
    return bytes(data)


def _parse(data: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(data or b"{}")
    except ValueError as exc:
        raise ProviderError("the provider's answer is not JSON") from exc
    if not isinstance(fields, dict):
        raise ProviderError("the provider's answer is not a JSON object")
    return fields
