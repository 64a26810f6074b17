"""Station 5: the Runner protocol. A runner turns a spec into a stream of outputs; the worker does the rest.

The stream is pulled. Closing it (a cancel, a lost lease, a drain that ran out of time) raises GeneratorExit
inside the runner at its next output, which is at most one step or one chunk away.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from filmgate.jobs import JobId, Route, Stage, TenantId, VideoSpec
from filmgate.models.cards import ModelCard


@dataclass(frozen=True, slots=True)
class RenderTask:
    """One attempt: the spec, the source it starts from and the latents of an earlier attempt, if any.

    Both are opened lazily and decrypt as they are read. What a runner remembers of one tenant's job must not
    speed up another's: a stranger could tell that somebody had asked the same.
    """

    job_id: JobId
    spec: VideoSpec
    tenant_id: TenantId | None = None
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
class EarlyClip:
    """The clip before it is finished, so that the upload can start early. Comes before the first fragment.

    `open_body` yields everything behind the head, in order, as it is encoded. `read_head` returns the first
    `head_bytes` bytes, which contain the index, after the body has ended. Together they are the bytes of the
    ClipSource. The body raises WriteError if rendering fails, and after `cancel`.
    """

    head_bytes: int
    open_body: Callable[[], Iterator[bytes]]
    read_head: Callable[[], bytes]
    cancel: Callable[[], None]


def _nothing_to_close() -> None:
    return


class PictureKind(StrEnum):
    """What a still is for."""

    PREVIEW = "preview"
    THUMBNAIL = "thumbnail"
    SPRITESHEET = "spritesheet"


@dataclass(frozen=True, slots=True)
class Picture:
    """A JPEG: a preview while the job runs, or the thumbnail or spritesheet of the finished clip."""

    kind: PictureKind
    data: bytes


@dataclass(frozen=True, slots=True)
class ClipSource:
    """The finished clip, the last output.

    The upload thread opens it while the next job denoises, and again if the store fails: it must not use the
    device and must yield the same bytes each time. The worker calls `close` when it is done with the clip.
    """

    open_chunks: Callable[[], Iterator[bytes]]
    close: Callable[[], None] = _nothing_to_close
    media_type: str = "video/mp4"


Output = Step | Latents | EarlyClip | Fragment | Picture | ClipSource


@runtime_checkable
class Describes(Protocol):
    """A runner that knows what clients may ask of its models once it has loaded them."""

    def cards(self) -> tuple[ModelCard, ...]:
        """One card a model; none before `check` has passed."""
        ...


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

    def render(self, task: RenderTask) -> Generator[Output, None, None]:
        """Render the task. Raises RunError subclasses; DeviceError means that the process must end."""
        ...
