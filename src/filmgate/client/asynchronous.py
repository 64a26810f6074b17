"""The client for asyncio: the same methods as the blocking client."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, closing
from math import inf
from pathlib import Path
from typing import Any, Self

import httpx

from filmgate.client import operations
from filmgate.client.files import PartialFile
from filmgate.client.operations import Answer, Operation, T
from filmgate.client.protocol import (
    Call,
    Variant,
    Video,
    VideoList,
    connection_lost,
    content_call,
    stream_call,
    stream_ended,
)


class AsyncFilmgate(operations.Connection[httpx.AsyncClient]):
    """As `Filmgate`, in an `async with` block: every method is awaited, events and streams are iterated."""

    async def create(self, prompt: str, *, image: str | Path | None = None, **options: Any) -> Video:
        return await self._run(self._create(prompt, image, options))

    async def get(self, video: Video | str) -> Video:
        return await self._run(self._video("GET", video))

    async def list(self, limit: int = 20, after: str | None = None) -> VideoList:
        return await self._run(self._list(limit, after))

    async def models(self) -> Sequence[dict[str, Any]]:
        return await self._run(self._models())

    async def cancel(self, video: Video | str) -> Video:
        return await self._run(self._video("POST", video, "/cancel"))

    async def delete(self, video: Video | str) -> None:
        await self._run(self._delete(video))

    async def wait(
        self,
        video: Video | str,
        *,
        on_progress: operations.ProgressCallback | None = None,
        show_progress: bool = False,
        timeout_seconds: float = inf,
    ) -> Video:
        return await self._run(
            self._wait(video, on_progress, show_progress=show_progress, timeout_seconds=timeout_seconds)
        )

    async def generate(
        self, prompt: str, path: str | Path, *, show_progress: bool = False, **options: Any
    ) -> Video:
        video = await self.wait(await self.create(prompt, **options), show_progress=show_progress)
        await self.download(video, path)
        return video

    async def events(self, video: Video | str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        reader = operations.EventReader(video)
        while True:
            error = stream_ended()
            try:
                async with aclosing(await self._run(self._send(reader.connect()))) as response:
                    async for line in response.aiter_lines():
                        for event in reader.feed(line):
                            yield event
            except httpx.RequestError as exc:
                error = exc
            if reader.is_done:
                return
            reader.attempt += 1
            await self._perform(self._pause(error, reader.attempt))

    async def stream(self, video: Video | str) -> AsyncIterator[bytes]:
        async with aclosing(self._read(stream_call(video, self._http.timeout))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def download(self, video: Video | str, path: str | Path, variant: Variant = "video") -> Path:
        with PartialFile(Path(path)) as file:
            async with aclosing(self._read(content_call(video, variant))) as chunks:
                async for chunk in chunks:
                    file.write(chunk)
        return Path(path)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def _open(self, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(**options)

    async def _run(self, operation: Operation[T]) -> T:
        answer: Answer = None
        with closing(operation):  # an interrupt ends its progress bar, too
            while True:
                try:
                    step = operation.send(answer)
                except StopIteration as end:
                    result: T = end.value
                    return result
                answer = await self._perform(step)

    async def _perform(self, step: operations.Step) -> Answer:
        if isinstance(step, operations.Pause):
            await asyncio.sleep(step.seconds)
            return None
        request = self._http.build_request(step.method, step.path, **step.options)
        try:
            response = await self._http.send(
                request, stream=step.is_streamed, follow_redirects=step.is_streamed
            )
            if not response.is_success:
                await response.aread()
        except httpx.RequestError as exc:
            return exc
        return response

    async def _read(self, call: Call) -> AsyncGenerator[bytes, None]:
        """The body of the response, as it arrives."""
        async with aclosing(await self._run(self._send(call))) as response:
            try:
                async for chunk in response.aiter_bytes():
                    yield chunk
            except httpx.RequestError as exc:
                raise connection_lost(self._url, exc) from exc
