"""The client for asyncio: the same methods as the blocking client."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, Unpack

import httpx

from filmgate.client import operations
from filmgate.client.files import PartialFile
from filmgate.client.operations import Answer, Operation, T
from filmgate.client.protocol import Call, Variant, Video, VideoList, content_call, failure_of, stream_call


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

    async def wait(self, video: Video | str, **options: Unpack[operations.WaitOptions]) -> Video:
        return await self._run(self._wait(video, options))

    async def generate(
        self, prompt: str, path: str | Path, *, is_shown: bool = False, **options: Any
    ) -> Video:
        video = await self.wait(await self.create(prompt, **options), is_shown=is_shown)
        await self.download(video, path)
        return video

    async def events(self, video: Video | str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        reader = operations.EventReader(video)
        while not reader.is_done:
            try:
                async with self._streamed(reader.call) as response:
                    async for line in response.aiter_lines():
                        for event in reader.feed(line):
                            yield event
            except httpx.TransportError as exc:
                reader.attempt += 1
                await self._perform(self._pause(exc, reader.attempt))

    async def stream(self, video: Video | str) -> AsyncIterator[bytes]:
        async with self._streamed(stream_call(video)) as response:
            async for chunk in response.aiter_bytes():
                yield chunk

    async def download(self, video: Video | str, path: str | Path, variant: Variant = "video") -> Path:
        with PartialFile(Path(path)) as file:
            async with self._streamed(content_call(video, variant)) as response:
                async for chunk in response.aiter_bytes():
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
        try:
            return await self._http.request(step.method, step.path, **step.options)
        except httpx.TransportError as exc:
            return exc

    @asynccontextmanager
    async def _streamed(self, call: Call) -> AsyncIterator[httpx.Response]:
        options = {"follow_redirects": True, **call.options}
        async with self._http.stream(call.method, call.path, **options) as response:
            if not response.is_success:
                await response.aread()
                raise failure_of(response)
            yield response
