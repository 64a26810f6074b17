"""Station 5: the Runner protocol. A runner turns a spec into a stream of outputs; the worker does the rest.

The stream is pulled. Closing it (a cancel, a lost lease, a drain that ran out of time) raises GeneratorExit
inside the runner at its next output, which is at most one step or one chunk away.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from filmgate.jobs import JobId, Route, Stage, VideoSpec


@dataclass(frozen=True, slots=True)
class RenderTask:
    """One attempt: the spec, the source it starts from and the latents of an earlier attempt, if any.

    Both are opened lazily and decrypt as they are read.
    """

    job_id: JobId
    spec: VideoSpec
    read_source: Callable[[], Iterator[bytes]] | None = None
    read_latents: Callable[[], Iterator[bytes]] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """`done` of `total` units of a stage are finished on the device; `done` 0 opens the stage."""

    stage: Stage
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Latents:
    """The denoised latents as bytes, before any decoding. The worker stores them, then pulls on."""

    chunks: Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Fragment:
    """The next piece of the fragmented MP4, playable as soon as it is written. The first has the header."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Picture:
    """A still: a preview while the job runs, or the thumbnail or spritesheet of the finished clip."""

    part: str
    data: bytes
    media_type: str = "image/jpeg"


THUMBNAIL_PART = "thumbnail.jpg"
SPRITESHEET_PART = "spritesheet.jpg"
PREVIEW_PART = "preview.jpg"


@dataclass(frozen=True, slots=True)
class Movie:
    """The finished file, once, as the last output. Pulled on the upload thread while the next job denoises,
    so it must not need the device.
    """

    chunks: Iterable[bytes]
    media_type: str = "video/mp4"


Output = Step | Latents | Fragment | Picture | Movie


class Runner(Protocol):
    """Renders specs, one at a time, from one thread."""

    @property
    def models(self) -> tuple[str, ...]:
        """The models it can load, default first."""
        ...

    @property
    def route(self) -> Route: ...

    @property
    def device(self) -> str:
        """What it runs on, for records: `NVIDIA H200`, `cpu`, `managed:bedrock`."""
        ...

    def check(self) -> None:
        """Load and warm the default model and render a canary clip; raises if the clip is not sound."""
        ...

    def render(self, task: RenderTask) -> Iterator[Output]:
        """Render the task. Raises RunError subclasses; DeviceError means that the process must end."""
        ...
