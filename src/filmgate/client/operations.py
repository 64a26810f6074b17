"""Every operation of the API, without I/O: a generator yields requests and pauses, a client performs them.

The blocking and the asynchronous client differ only in how they perform a step, so retries, waiting and
the shape of every request are written only here.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import httpx

from filmgate.client.errors import VideoFailed
from filmgate.client.progress import shown_progress
from filmgate.client.protocol import (
    DEFAULT_URL,
    Call,
    Video,
    VideoList,
    check_url,
    create_call,
    delay_before_retry,
    failure_of,
    has_waited,
    is_response_lost,
    path_of,
    read_body,
    read_key_file,
    require_completed,
    to_list,
    to_video,
    unreachable,
    waiting_call,
)

T = TypeVar("T")
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for this long before the next step."""

    seconds: float


Step = Call | Pause
Answer = httpx.Response | httpx.RequestError | None
Operation = Generator[Step, Answer, T]


ProgressCallback = Callable[[Video], None]


class Connection(ABC, Generic[Http]):
    """A client of one server. Use it in a `with` block, or call `close`.

    Retries failed connections and HTTP 408, 429, 502, 503 and 504; a retried `create` is the same job. Raises
    RequestFailed.
    """

    def __init__(
        self, url: str = DEFAULT_URL, api_key: str = "", *, timeout_seconds: float = 60.0, **options: Any
    ) -> None:
        """`options` go to the httpx client, for example `verify` with an SSL context."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = check_url(url)
        self._http: Http = self._open(base_url=self._url, headers=headers, timeout=timeout_seconds, **options)

    @classmethod
    def local(cls, data: str | Path = "data", url: str = DEFAULT_URL) -> Self:
        """A client of `filmgate serve` on this machine, with the key in its data folder."""
        return cls(url, read_key_file(Path(data) / "local.key"))

    @abstractmethod
    def _open(self, **options: Any) -> Http: ...

    def _send(self, call: Call) -> Operation[httpx.Response]:
        """The response to a call, after retries. Raises RequestFailed.

        A DELETE whose response was lost may have been done: then 404 in a retry is a success.
        """
        attempt, may_be_deleted = 0, False
        while True:
            attempt += 1
            answer = yield call
            if isinstance(answer, httpx.Response) and (
                answer.is_success or (may_be_deleted and answer.status_code == httpx.codes.NOT_FOUND)
            ):
                return answer
            may_be_deleted = may_be_deleted or (call.method == "DELETE" and is_response_lost(answer))
            yield self._pause(answer, attempt)

    def _pause(self, answer: Answer, attempt: int) -> Pause:
        """The pause before the next attempt. Raises RequestFailed if there is no next attempt."""
        delay = delay_before_retry(answer if isinstance(answer, httpx.Response) else None, attempt)
        if delay is not None:
            return Pause(delay)
        if isinstance(answer, httpx.Response):
            raise failure_of(answer)
        raise unreachable(self._url, answer)

    def _create(self, prompt: str, image: str | Path | None, options: dict[str, Any]) -> Operation[Video]:
        return to_video((yield from self._send(create_call(prompt, image, options))))

    def _video(self, method: str, video: Video | str, action: str = "") -> Operation[Video]:
        return to_video((yield from self._send(Call(method, path_of(video) + action))))

    def _delete(self, video: Video | str) -> Operation[None]:
        yield from self._send(Call("DELETE", path_of(video)))

    def _list(self, limit: int, after: str | None) -> Operation[VideoList]:
        params = {"limit": limit} | ({"after": after} if after else {})
        return to_list((yield from self._send(Call("GET", "/v1/videos", {"params": params}))))

    def _models(self) -> Operation[Sequence[dict[str, Any]]]:
        response = yield from self._send(Call("GET", "/v1/models"))
        return read_body(response, lambda body: body["data"])

    def _wait(
        self,
        video: Video | str,
        on_progress: ProgressCallback | None = None,
        *,
        show_progress: bool = False,
        timeout_seconds: float = inf,
    ) -> Operation[Video]:
        ends_at = time.monotonic() + timeout_seconds
        with shown_progress(is_wanted=show_progress) as show:
            call = Call("GET", path_of(video))
            while True:
                response = yield from self._send(call)
                current = to_video(response)
                show(current)
                if on_progress is not None:
                    on_progress(current)
                if current.is_final:
                    return require_completed(current)
                seconds = min(current.poll_seconds, ends_at - time.monotonic())
                if seconds <= 0:
                    raise VideoFailed(
                        f"{current.id} is not completed after {timeout_seconds:g} s; wait again or cancel it"
                    )
                if call.options and not has_waited(response):
                    yield Pause(seconds)
                # The server responds as soon as the video ends: a pause here would delay that.
                call = waiting_call(video, seconds, self._http.timeout)


class EventReader:
    """The events of one video over any number of connections."""

    def __init__(self, video: Video | str) -> None:
        self._path = f"{path_of(video)}/events"
        self._last_id: str | None = None
        self._fields: list[tuple[str, str]] = []
        self.attempt = 0
        self.is_done = False

    def connect(self) -> Call:
        """The request that continues after the last complete event; one that was cut off is sent again."""
        self._fields = []
        headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
        return Call("GET", self._path, {"headers": headers}, is_streamed=True)

    def feed(self, line: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The event that this line completes, if any, as its name and data."""
        if line:
            key, _, value = line.partition(":")
            self._fields.append((key, value.removeprefix(" ")))
            return
        fields, self._fields = self._fields, []
        last = dict(fields)
        self._last_id = last.get("id", self._last_id)
        if "data" in last:
            name = last.get("event", "")
            data = json.loads("\n".join(value for key, value in fields if key == "data"))
            has_ended = data.get("status") in ("completed", "failed") and not data.get("is_replay")
            self.attempt, self.is_done = 0, self.is_done or has_ended or name == "gone"
            yield name, data
