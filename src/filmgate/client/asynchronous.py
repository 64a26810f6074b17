"""The client for asyncio: the same methods as the blocking client."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
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


class AsyncFilmgate:
    """A client of one server. Use it in an `async with` block, or call `close`.

    Failed connections, 429 and 503 are retried; a retried `create` is the same job. Raises RequestFailed.
    """

    def __init__(
        self, url: str = DEFAULT_URL, api_key: str = "", *, timeout_seconds: float = 60.0, **options: Any
    ) -> None:
        """`options` go to httpx.AsyncClient, for example `verify` or `cert`."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = url.removesuffix("/").removesuffix("/v1")
        self._http = httpx.AsyncClient(
            base_url=self._url, headers=headers, timeout=timeout_seconds, **options
        )

    @classmethod
    def local(cls, data: str | Path = "data", url: str = DEFAULT_URL) -> Self:
        """A client of `filmgate serve` on this machine, with the key in its data folder."""
        return cls(url, read_key_file(Path(data) / "local.key"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def create(self, prompt: str, *, image: str | Path | None = None, **options: Any) -> Video:
        """Create a video. Options: model, size, seconds, fps, steps, seed, guidance, negative_prompt."""
        return to_video(await self._send(create_call(prompt, image, options)))

    async def get(self, video: Video | str) -> Video:
        """The video in its current state."""
        return to_video(await self._send(Call("GET", f"/v1/videos/{id_of(video)}")))

    async def list(self, limit: int = 20, after: str | None = None) -> VideoList:
        """The newest videos, or those after a cursor."""
        params = {"limit": limit} | ({"after": after} if after else {})
        return to_list(await self._send(Call("GET", "/v1/videos", {"params": params})))

    async def models(self) -> Sequence[dict[str, Any]]:
        """The models of the server and their limits."""
        models: Sequence[dict[str, Any]] = (await self._send(Call("GET", "/v1/models"))).json()["data"]
        return models

    async def cancel(self, video: Video | str) -> Video:
        """Stop a video. One that has ended stays as it is."""
        return to_video(await self._send(Call("POST", f"/v1/videos/{id_of(video)}/cancel")))

    async def delete(self, video: Video | str) -> None:
        """Delete a video and everything stored for it."""
        await self._send(Call("DELETE", f"/v1/videos/{id_of(video)}"))

    async def wait(
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
                current = await self.get(video)
                show(current)
                if on_progress is not None:
                    on_progress(current)
                if current.is_final:
                    return require_completed(current)
                if time.monotonic() + current.poll_seconds > ends_at:
                    raise VideoFailed(f"{current.id} is not completed after {timeout_seconds:g} s")
                await asyncio.sleep(current.poll_seconds)

    async def events(self, video: Video | str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """(name, data) of every event until the video ends: status, progress, preview, gone."""
        parser, attempt = EventParser(), 0
        while True:
            try:
                async with self._streamed(events_call(video, parser)) as response:
                    async for line in response.aiter_lines():
                        for name, data in parser.feed(line):
                            attempt = 0
                            yield name, data
                            if is_last(name, data):
                                return
            except httpx.TransportError as exc:
                attempt += 1
                await self._pause(None, attempt, exc)

    async def stream(self, video: Video | str) -> AsyncIterator[bytes]:
        """The clip as a fragmented MP4 while it is rendered."""
        async with self._streamed(Call("GET", f"/v1/videos/{id_of(video)}/stream")) as response:
            async for chunk in response.aiter_bytes():
                yield chunk

    async def download(self, video: Video | str, path: str | Path, variant: Variant = "video") -> Path:
        """Write the clip, its thumbnail or its sprite sheet to a file."""
        with PartialFile(Path(path)) as file:
            async with self._streamed(content_call(video, variant)) as response:
                async for chunk in response.aiter_bytes():
                    file.write(chunk)
        return Path(path)

    async def generate(
        self, prompt: str, path: str | Path, *, is_shown: bool = False, **options: Any
    ) -> Video:
        """Create a video, wait for it and write the clip to `path`."""
        video = await self.wait(await self.create(prompt, **options), is_shown=is_shown)
        await self.download(video, path)
        return video

    async def _send(self, call: Call) -> httpx.Response:
        attempt = 0
        while True:
            attempt += 1
            try:
                response = await self._http.request(call.method, call.path, **call.options)
            except httpx.TransportError as exc:
                await self._pause(None, attempt, exc)
                continue
            if response.is_success:
                return response
            await self._pause(response, attempt)

    async def _pause(
        self, response: httpx.Response | None, attempt: int, error: httpx.TransportError | None = None
    ) -> None:
        """Wait before the next attempt. Raises RequestFailed when there is none."""
        delay = delay_before_retry(response, attempt)
        if delay is None:
            raise unreachable(self._url, error) if response is None else failure_of(response)
        await asyncio.sleep(delay)

    @asynccontextmanager
    async def _streamed(self, call: Call) -> AsyncIterator[httpx.Response]:
        request = self._http.build_request(call.method, call.path, **call.options)
        response = await self._http.send(request, stream=True, follow_redirects=True)
        try:
            if not response.is_success:
                await response.aread()
                raise failure_of(response)
            yield response
        finally:
            await response.aclose()
