"""The blocking client."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any, Self

import httpx

from filmgate.client.files import PartialFile
from filmgate.client.operations import (
    Answer,
    Connection,
    EventReader,
    Operation,
    Pause,
    ProgressCallback,
    Step,
    T,
)
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


class Filmgate(Connection[httpx.Client]):
    __doc__ = Connection.__doc__

    def create(self, prompt: str, *, image: str | Path | None = None, **options: Any) -> Video:
        """Create a video.

        Options: model, size, seconds, fps, steps, seed, guidance, lora, quality, pixel_format,
        negative_prompt.
        """
        return self._run(self._create(prompt, image, options))

    def get(self, video: Video | str) -> Video:
        """The video in its current state."""
        return self._run(self._video("GET", video))

    def list(self, limit: int = 20, after: str | None = None) -> VideoList:
        """The newest videos, or those after a cursor."""
        return self._run(self._list(limit, after))

    def models(self) -> Sequence[dict[str, Any]]:
        """The models of the server and their limits."""
        return self._run(self._models())

    def cancel(self, video: Video | str) -> Video:
        """Stop a video. A finished video does not change."""
        return self._run(self._video("POST", video, "/cancel"))

    def delete(self, video: Video | str) -> None:
        """Delete a video and everything stored for it."""
        self._run(self._delete(video))

    def wait(
        self,
        video: Video | str,
        *,
        on_progress: ProgressCallback | None = None,
        show_progress: bool = False,
        timeout_seconds: float = inf,
    ) -> Video:
        """Wait until the video is completed. Raises VideoFailed if it fails or the timeout expires.

        `on_progress` is called with every state. `show_progress` shows a progress bar in a terminal or
        notebook.
        """
        return self._run(
            self._wait(video, on_progress, show_progress=show_progress, timeout_seconds=timeout_seconds)
        )

    def generate(
        self, prompt: str, path: str | Path, *, show_progress: bool = False, **options: Any
    ) -> Video:
        """Create a video, wait for it and write the clip to `path`."""
        video = self.wait(self.create(prompt, **options), show_progress=show_progress)
        self.download(video, path)
        return video

    def events(self, video: Video | str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, data) of every event until the video ends: status, progress, preview, gone."""
        reader = EventReader(video)
        while True:
            error = stream_ended()
            try:
                with closing(self._run(self._send(reader.connect()))) as response:
                    for line in response.iter_lines():
                        yield from reader.feed(line)
            except httpx.RequestError as exc:
                error = exc
            if reader.is_done:
                return
            reader.attempt += 1
            self._perform(self._pause(error, reader.attempt))

    def stream(self, video: Video | str) -> Iterator[bytes]:
        """The clip as a fragmented MP4 while it is rendered."""
        yield from self._read(stream_call(video, self._http.timeout))

    def download(self, video: Video | str, path: str | Path, variant: Variant = "video") -> Path:
        """Write the clip, its thumbnail or its sprite sheet to a file."""
        with PartialFile(Path(path)) as file, closing(self._read(content_call(video, variant))) as chunks:
            for chunk in chunks:
                file.write(chunk)
        return Path(path)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _open(self, **options: Any) -> httpx.Client:
        return httpx.Client(**options)

    def _run(self, operation: Operation[T]) -> T:
        answer: Answer = None
        with closing(operation):  # an interrupt ends its progress bar, too
            while True:
                try:
                    step = operation.send(answer)
                except StopIteration as end:
                    result: T = end.value
                    return result
                answer = self._perform(step)

    def _perform(self, step: Step) -> Answer:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        request = self._http.build_request(step.method, step.path, **step.options)
        try:
            response = self._http.send(request, stream=step.is_streamed, follow_redirects=step.is_streamed)
            if not response.is_success:
                response.read()
        except httpx.RequestError as exc:
            return exc
        return response

    def _read(self, call: Call) -> Generator[bytes, None, None]:
        """The body of the response, as it arrives."""
        with closing(self._run(self._send(call))) as response:
            try:
                yield from response.iter_bytes()
            except httpx.RequestError as exc:
                raise connection_lost(self._url, exc) from exc
