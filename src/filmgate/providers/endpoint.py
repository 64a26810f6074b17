"""Calls to an OpenAI-compatible endpoint over the standard library: proxies, redirects and TLS as the host
has them. What the endpoint says is repeated by its code alone: its words may quote the request.
"""

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from filmgate.errors import ProviderError, ProviderRefused, ProviderThrottled, ProviderUnusable

_CHUNK_BYTES = 256 << 10
_MOST_JSON_BYTES = 4 << 20
_CODE = re.compile(r"[a-zA-Z0-9_.-]{1,60}")


@dataclass(frozen=True, slots=True)
class Reply:
    """A JSON answer and its headers."""

    fields: Mapping[str, Any]
    headers: Mapping[str, str]


class Missing(ProviderRefused):
    """The endpoint does not know what was named."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to call, and with which key."""

    url: str
    key: str = field(repr=False)
    timeout_seconds: float

    def call(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One call that answers in JSON. Raises ProviderError subclasses."""
        request = self._request(method, path, body, headers or {})
        with self._answered(request) as answer:
            data = answer.read(_MOST_JSON_BYTES)
            heads = {name.lower(): value for name, value in answer.headers.items()}
        return Reply(_to_fields(data), heads)

    def stream(self, path: str, media: str) -> Iterator[bytes]:
        """The body of a GET as it arrives, of this kind of media and as long as it was announced."""
        with self._answered(self._request("GET", path, b"", {"Accept": f"{media}/*, */*"})) as answer:
            kind = answer.headers.get_content_type()
            if not kind.startswith((f"{media}/", "application/octet-stream")):
                raise ProviderError(f"the provider sent {kind} where {media} was expected")
            announced, got = answer.headers.get("Content-Length"), 0
            while chunk := answer.read(_CHUNK_BYTES):
                got += len(chunk)
                yield chunk
        if not got or (announced is not None and int(announced) != got):
            raise ProviderError(f"the provider sent {got} of {announced} bytes")

    def _request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> urllib.request.Request:
        request = urllib.request.Request(  # noqa: S310 - the scheme of `url` is checked when it is opened
            self.url + path, data=body or None, headers=dict(headers), method=method
        )
        # Unredirected: a link to another host must not carry our key there.
        request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        return request

    @contextmanager
    def _answered(self, request: urllib.request.Request) -> Iterator[Any]:
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_seconds) as answer:  # noqa: S310
                yield answer
        except urllib.error.HTTPError as exc:
            with exc:
                raise _judge(exc) from exc
        except (OSError, http.client.HTTPException) as exc:
            # urllib wraps what went wrong while connecting; a timeout should be seen to be one.
            reason = getattr(exc, "reason", None)
            cause = reason if isinstance(reason, OSError) else exc
            raise ProviderError(f"the provider cannot be reached ({type(cause).__name__})") from cause


def _judge(error: urllib.error.HTTPError) -> ProviderError:
    """What a refusal means for the job."""
    words = f"HTTP {error.code} {_code_of(error)}".rstrip()
    match error.code:
        case 404 | 405 | 410:
            return Missing(f"the provider does not know it: {words}")
        case 401 | 403:
            return ProviderUnusable(f"the provider does not let us in: {words}; check fallback.key_file")
        case 429:
            after = error.headers.get("Retry-After", "")
            return ProviderThrottled(
                f"the provider has no room: {words}",
                retry_after_seconds=float(after) if after.isdecimal() else None,
            )
        case 408 | 409 | 425:
            return ProviderError(f"the provider asks for another try: {words}")
        case code if code >= 500:
            return ProviderError(f"the provider failed: {words}")
        case _:
            return ProviderRefused(f"the provider refused the job: {words}")


def _code_of(error: urllib.error.HTTPError) -> str:
    try:
        told = json.loads(error.read(_MOST_JSON_BYTES))["error"]["code"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""  # an answer without a code is told by its status
    return told if isinstance(told, str) and _CODE.fullmatch(told) else ""


def _to_fields(data: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(data or b"{}")
    except ValueError as exc:
        raise ProviderError("the provider's answer is not JSON") from exc
    if not isinstance(fields, dict):
        raise ProviderError("the provider's answer is not a JSON object")
    return fields
