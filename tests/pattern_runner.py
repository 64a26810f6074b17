"""A runner that renders a test pattern: real stages, adjustable speed, deterministic bytes that are no video.

It replaces the GPU in tests and benchmarks of the queue, the worker and the store.
"""

import hashlib
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from filmgate.errors import DecodeError
from filmgate.jobs import Route, Stage, StillKind, VideoSpec
from filmgate.models.cards import ModelCard
from filmgate.pipeline.encode.clip_file import ClipSpool
from filmgate.worker.base import (
    ClipSource,
    EarlyClip,
    Fragment,
    Latents,
    Output,
    RenderTask,
    Step,
    Still,
)

MODEL = "pattern"
FRAMES_PER_CHUNK = 4


@dataclass(frozen=True, slots=True)
class PatternRunner:
    """Sleeps `pace_seconds` for every step and every chunk, as if a GPU were busy.

    No denoising ends while the file `hold` exists.
    """

    pace_seconds: float = 0.0
    chunk_bytes: int = 4096
    hold: Path | None = None

    @property
    def models(self) -> tuple[str, ...]:
        return (MODEL,)

    @property
    def route(self) -> Route:
        return Route.GPU

    @property
    def device(self) -> str:
        return "pattern"

    def cards(self) -> tuple[ModelCard, ...]:
        return ()

    def check(self) -> None:
        """Render the canary twice. Raises DecodeError if the bytes differ."""
        spec = VideoSpec(model=MODEL, prompt="canary", width=64, height=64, seconds=0.5, fps=8, seed=0)
        if pattern_clip(spec, self.chunk_bytes) != pattern_clip(spec, self.chunk_bytes):
            raise DecodeError("the canary clips differ")

    def render(self, task: RenderTask) -> Generator[Output, None, None]:
        if task.read_latents is None:
            task.turn.take()
            yield from self._denoise(task.spec)
        elif b"".join(task.read_latents()) != _latents(task.spec):
            raise DecodeError("the checkpoint belongs to another job")
        task.turn.take()
        yield from self._decode(task)

    def _denoise(self, spec: VideoSpec) -> Iterator[Output]:
        yield Step(Stage.TEXT, 0, 1)
        self._work()
        yield Step(Stage.TEXT, 1, 1)
        steps = spec.steps or 8
        yield Step(Stage.DENOISE, 0, steps)
        for done in range(1, steps + 1):
            self._work()
            yield Step(Stage.DENOISE, done, steps)
        while self.hold and self.hold.exists():
            self._work()
        yield Latents([_latents(spec)])

    def _decode(self, task: RenderTask) -> Iterator[Output]:
        spec = task.spec
        chunks, spool = _chunk_count(spec), ClipSpool(head_bytes=self.chunk_bytes)
        yield Step(Stage.DECODE, 0, chunks)
        try:
            yield EarlyClip(spool.head_bytes, spool.follow, spool.head, spool.close)
            spool.seek(spool.head_bytes)  # like a muxer: the head is written last
            for number in range(chunks):
                self._work()
                chunk = _chunk(spec, number, self.chunk_bytes)
                if number:
                    spool.write(chunk)
                if number + 1 == chunks:
                    task.turn.leave()
                yield Fragment(chunk)
                yield Step(Stage.DECODE, number + 1, chunks)
            spool.seek(0)
            spool.write(_chunk(spec, 0, self.chunk_bytes))
            spool.publish()
        except BaseException:
            spool.close()
            raise
        yield Still(StillKind.PREVIEW, _noise(spec, "preview", 64))
        yield Still(StillKind.THUMBNAIL, _noise(spec, "thumbnail", 64))
        yield Still(StillKind.SPRITESHEET, _noise(spec, "spritesheet", 64))
        yield ClipSource(spool.chunks, spool.close)

    def _work(self) -> None:
        time.sleep(self.pace_seconds)


def pattern_clip(spec: VideoSpec, chunk_bytes: int = 4096) -> bytes:
    """Return the clip that this spec renders to, for comparison."""
    return b"".join(_chunk(spec, number, chunk_bytes) for number in range(_chunk_count(spec)))


def _chunk_count(spec: VideoSpec) -> int:
    return -(-spec.frames // FRAMES_PER_CHUNK)


def _chunk(spec: VideoSpec, number: int, size: int) -> bytes:
    return _noise(spec, f"chunk {number}", size)


def _latents(spec: VideoSpec) -> bytes:
    return _noise(spec, "latents", 1024)


def _noise(spec: VideoSpec, label: str, size: int) -> bytes:
    return hashlib.shake_256(f"{spec.prompt}|{spec.seed}|{spec.size}|{label}".encode()).digest(size)
