"""The Runner protocol: a runner turns a spec into a stream of outputs, and the worker stores them.

The worker pulls the stream. To stop a runner (cancelled job, lost lease, end of a drain) it closes the
stream, which raises GeneratorExit in the runner at its next output, at most one step or one chunk later.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from filmgate.errors import DeviceBroken
from filmgate.jobs import Route, StillKind, TenantId, VideoSpec
from filmgate.models.cards import ModelCard
from filmgate.pipeline.control import Step
from filmgate.scheduling.workers import GpuStatus
from filmgate.worker.tracing import GpuReadings


class Turn(Protocol):
    """A task's turn on the device. Tasks have it one after the other and prepare before their turn."""

    @property
    def is_taken(self) -> bool:
        """Whether the task has taken its turn. Until then it has not started and reports no steps."""
        ...

    def take(self) -> None:
        """Wait until the task before has left the device. Idempotent. Raises what must stop this attempt.

        A task that has left may take another turn.
        """
        ...

    def step_aside(self) -> None:
        """Let a task that has left take another turn: this one waits for something that it may hold.

        This task takes its turn again with `take`, before any task that is leased later. Idempotent.
        """
        ...

    def announce_end(self) -> None:
        """Let the next task be prepared: this one has queued all its denoising steps. Idempotent."""
        ...

    def leave(self) -> None:
        """Let the next task have the device: the last work of this one is queued. Idempotent."""
        ...


class FreeTurn:
    """The turn of a task that has the device to itself."""

    is_taken = True

    def take(self) -> None:
        return

    def step_aside(self) -> None:
        return

    def announce_end(self) -> None:
        return

    def leave(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class RenderTask:
    """One attempt: the spec, its source and the latents of an earlier attempt, if there are any.

    The readers decrypt the objects as they are read. A cache in a runner must be separate per tenant:
    otherwise the time to render would reveal that another tenant has requested the same.
    """

    spec: VideoSpec
    tenant_id: TenantId | None = None
    read_source: Callable[[], Iterator[bytes]] | None = None
    read_latents: Callable[[], Iterator[bytes]] | None = None
    turn: Turn = field(default_factory=FreeTurn)


@dataclass(frozen=True, slots=True)
class Latents:
    """The denoised latents as bytes, before any decoding. The worker stores them as the checkpoint."""

    chunks: Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Fragment:
    """The next fragment of a fragmented MP4. The first one contains the header."""

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


@dataclass(frozen=True, slots=True)
class Still:
    """A JPEG: the preview while the job runs, the thumbnail or the spritesheet of the finished clip."""

    kind: StillKind
    data: bytes


@dataclass(frozen=True, slots=True)
class ClipSource:
    """The finished clip, the last output.

    The upload thread opens it while the next job denoises, and again if the store fails: it must not use the
    device and must yield the same bytes each time. The worker calls `close` when it is done with the clip.
    """

    open_chunks: Callable[[], Iterator[bytes]]
    close: Callable[[], None] = lambda: None
    reduced_to: str | None = None  # the rung of the memory ladder, if memory ran out during decode


Output = Step | Latents | EarlyClip | Fragment | Still | ClipSource


@runtime_checkable
class SelfCheckingRunner(Protocol):
    """A runner that can check that its device and its weights have not changed."""

    @property
    def gpu(self) -> GpuReadings:
        """Recent readings of its GPU; empty on a CPU."""
        ...

    @property
    def speed(self) -> float:
        """1, or less while heat or power slows the GPU; forecasts use it."""
        ...

    @property
    def gpu_status(self) -> GpuStatus | None:
        """What the worker announces about its GPU; None on a CPU."""
        ...

    def recheck(self) -> None:
        """Check that the loaded weights and a canary clip have not changed. Raises DeviceDrifted.

        The worker calls it while no job is on the device.
        """
        ...

    def watched(self, on_broken: Callable[[DeviceBroken], None]) -> AbstractContextManager[None]:
        """Watch the device until the block ends. `on_broken` is called once, from another thread.

        Raises DeviceBroken if the device cannot be trusted from the start.
        """
        ...


class Runner(Protocol):
    """Renders specs. While one is decoded, the next may be prepared on another thread (`RenderTask.turn`)."""

    @property
    def models(self) -> tuple[str, ...]:
        """The models it can load, default first."""
        ...

    @property
    def route(self) -> Route: ...

    @property
    def device(self) -> str:
        """The name of the device, for records: `NVIDIA H200`, `cpu`, `managed:bedrock`."""
        ...

    def cards(self) -> tuple[ModelCard, ...]:
        """One card per model that it can describe; empty until `check` passes."""
        ...

    def check(self) -> None:
        """Load and warm the default model and render a canary clip. Raises if the canary clip is wrong."""
        ...

    def render(self, task: RenderTask) -> Generator[Output, None, None]:
        """Render the task. Raises RunError subclasses; after a DeviceError the process must exit."""
        ...
