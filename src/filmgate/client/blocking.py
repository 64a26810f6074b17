"""The blocking client."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, Unpack

import httpx

from filmgate.client.files import PartialFile
from filmgate.client.operations import Answer, Connection, EventReader, Operation, Pause, Step, T, WaitOptions
from filmgate.client.protocol import Call, Variant, Video, VideoList, content_call, failure_of, stream_call


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
        """Stop a video. One that has ended stays as it is."""
        return self._run(self._video("POST", video, "/cancel"))

    def delete(self, video: Video | str) -> None:
        """Delete a video and everything stored for it."""
        self._run(self._delete(video))

    def wait(self, video: Video | str, **options: Unpack[WaitOptions]) -> Video:
        """Wait until the video is completed. Raises VideoFailed, also when the time is over.

        `is_shown` shows a progress bar in a terminal or notebook.
        """
        return self._run(self._wait(video, options))

    def generate(self, prompt: str, path: str | Path, *, is_shown: bool = False, **options: Any) -> Video:
        """Create a video, wait for it and write the clip to `path`."""
        video = self.wait(self.create(prompt, **options), is_shown=is_shown)
        self.download(video, path)
        return video

    def events(self, video: Video | str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(name, data) of every event until the video ends: status, progress, preview, gone."""
        reader = EventReader(video)
        while not reader.is_done:
            try:
                with self._streamed(reader.call) as response:
                    for line in response.iter_lines():
                        yield from reader.feed(line)
            except httpx.TransportError as exc:
                reader.attempt += 1
                self._perform(self._pause(exc, reader.attempt))

    def stream(self, video: Video | str) -> Iterator[bytes]:
        """The clip as a fragmented MP4 while it is rendered."""
        with self._streamed(stream_call(video)) as response:
            yield from response.iter_bytes()

    def download(self, video: Video | str, path: str | Path, variant: Variant = "video") -> Path:
        """Write the clip, its thumbnail or its sprite sheet to a file."""
        with PartialFile(Path(path)) as file, self._streamed(content_call(video, variant)) as response:
            for chunk in response.iter_bytes():
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
        try:
            return self._http.request(step.method, step.path, **step.options)
        except httpx.TransportError as exc:
            return exc

    @contextmanager
    def _streamed(self, call: Call) -> Iterator[httpx.Response]:
        options = {"follow_redirects": True, **call.options}
        with self._http.stream(call.method, call.path, **options) as response:
            if not response.is_success:
                response.read()
                raise failure_of(response)
            yield response
