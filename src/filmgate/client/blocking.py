"""The blocking client."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Self

import httpx

from filmgate.client.errors import VideoFailed
from filmgate.client.files import PartialFile
from filmgate.client.progress import shown_progress
from filmgate.client.protocol import (
    DEFAULT_URL,
    Call,
    EventParser,
    Variant,
    Video,
    VideoList,
    content_call,
    create_call,
    delay_before_retry,
    events_call,
    failure_of,
    id_of,
    is_last,
    read_key_file,
    require_completed,
    to_list,
    to_video,
    unreachable,
)


class Filmgate:
    """A client of one server. Use it in a `with` block, or call `close`.

    Failed connections, 429 and 503 are retried; a retried `create` is the same job. Raises RequestFailed.
    """

    def __init__(
        self, url: str = DEFAULT_URL, api_key: str = "", *, timeout_seconds: float = 60.0, **options: Any
    ) -> None:
        """`options` go to httpx.Client, for example `verify` or `cert`."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = url.removesuffix("/").removesuffix("/v1")
        self._http = httpx.Client(base_url=self._url, headers=headers, timeout=timeout_seconds, **options)

    @classmethod
    def local(cls, data: str | Path = "data", url: str = DEFAULT_URL) -> Self:
        """A client of `filmgate serve` on this machine, with the key in its data folder."""
        return cls(url, read_key_file(Path(data) / "local.key"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def create(self, prompt: str, *, image: str | Path | None = None, **options: Any) -> Video:
        """Create a video. Options: model, size, seconds, fps, steps, seed, guidance, negative_prompt."""
        return to_video(self._send(create_call(prompt, image, options)))

    def get(self, video: Video | str) -> Video:
        """The video in its current state."""
        return to_video(self._send(Call("GET", f"/v1/videos/{id_of(video)}")))

    def list(self, limit: int = 20, after: str | None = None) -> VideoList:
        """The newest videos, or those after a cursor."""
        params = {"limit": limit} | ({"after": after} if after else {})
        return to_list(self._send(Call("GET", "/v1/videos", {"params": params})))

    def models(self) -> Sequence[dict[str, Any]]:
        """The models of the server and their limits."""
        models: Sequence[dict[str, Any]] = self._send(Call("GET", "/v1/models")).json()["data"]
        return models

    def cancel(self, video: Video | str) -> Video:
        """Stop a video. One that has ended stays as it is."""
        return to_video(self._send(Call("POST", f"/v1/videos/{id_of(video)}/cancel")))

    def delete(self, video: Video | str) -> None:
        """Delete a video and everything stored for it."""
        self._send(Call("DELETE", f"/v1/videos/{id_of(video)}"))

    def wait(
        self,
        video: Video | str,
        *,
        on_progress: Callable[[Video], None] | None = None,
        is_shown: bool = False,
        timeout_seconds: float = float("inf"),
    ) -> Video:
        """Wait until the video is completed. Raises VideoFailed, also when the time is over.

        `is_shown` shows a progress bar in a terminal or notebook.
        """
        ends_at = time.monotonic() + timeout_seconds
        with shown_progress(is_shown=is_shown) as show:
            while True:
                current = self.get(video)
                show(current)
                if on_progress is not None:
                    on_progress(current)
                if current.is_final:
                    return require_completed(current)
                if time.monotonic() + current.poll_seconds > ends_at:
                    raise VideoFailed(f"{current.id} is not completed after {timeout_seconds:g} s")
                time.sleep(current.poll_seconds)

    def events(self, video: Video | str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, data) of every event until the video ends: status, progress, preview, gone."""
        parser, attempt = EventParser(), 0
        while True:
            try:
                with self._streamed(events_call(video, parser)) as response:
                    for name, data in chain.from_iterable(map(parser.feed, response.iter_lines())):
                        attempt = 0
                        yield name, data
                        if is_last(name, data):
                            return
            except httpx.TransportError as exc:
                attempt += 1
                self._pause(None, attempt, exc)

    def stream(self, video: Video | str) -> Iterator[bytes]:
        """The clip as a fragmented MP4 while it is rendered."""
        with self._streamed(Call("GET", f"/v1/videos/{id_of(video)}/stream")) as response:
            yield from response.iter_bytes()

    def download(self, video: Video | str, path: str | Path, variant: Variant = "video") -> Path:
        """Write the clip, its thumbnail or its sprite sheet to a file."""
        with PartialFile(Path(path)) as file, self._streamed(content_call(video, variant)) as response:
            for chunk in response.iter_bytes():
                file.write(chunk)
        return Path(path)

    def generate(self, prompt: str, path: str | Path, *, is_shown: bool = False, **options: Any) -> Video:
        """Create a video, wait for it and write the clip to `path`."""
        video = self.wait(self.create(prompt, **options), is_shown=is_shown)
        self.download(video, path)
        return video

    def _send(self, call: Call) -> httpx.Response:
        attempt = 0
        while True:
            attempt += 1
            try:
                response = self._http.request(call.method, call.path, **call.options)
            except httpx.TransportError as exc:
                self._pause(None, attempt, exc)
                continue
            if response.is_success:
                return response
            self._pause(response, attempt)

    def _pause(
        self, response: httpx.Response | None, attempt: int, error: httpx.TransportError | None = None
    ) -> None:
        """Wait before the next attempt. Raises RequestFailed when there is none."""
        delay = delay_before_retry(response, attempt)
        if delay is None:
            raise unreachable(self._url, error) if response is None else failure_of(response)
        time.sleep(delay)

    @contextmanager
    def _streamed(self, call: Call) -> Iterator[httpx.Response]:
        request = self._http.build_request(call.method, call.path, **call.options)
        response = self._http.send(request, stream=True, follow_redirects=True)
        try:
            if not response.is_success:
                response.read()
                raise failure_of(response)
            yield response
        finally:
            response.close()
