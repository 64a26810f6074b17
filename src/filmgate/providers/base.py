"""The Provider port: a managed video API that renders jobs which our own GPUs would finish too late.

A provider keeps no state for us. What it was asked and what it answered is in the `invocations` table, so
that the next process to lease the job resumes where the last one stopped. All methods block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from filmgate.jobs import InvocationId, JobId, ManagedPolicy, Size, VideoSpec
from filmgate.models.limits import Range, SizeLimits


@dataclass(frozen=True, slots=True)
class ProviderModel:
    """One model of a provider, its prices and what it renders. Routing decides by these values alone.

    Sizes are a list, or `size_limits`; lengths are a list, or `seconds_range`. Both empty: any.
    """

    provider: str
    model: str
    region: str | None
    sizes: tuple[Size, ...]
    seconds: tuple[float, ...]
    fps: int | None
    usd_per_second: float
    expected_seconds: float  # from start to finished clip, for the shortest length
    max_prompt_chars: int
    takes_image: bool
    max_concurrent: int | None = None
    size_limits: SizeLimits | None = None
    seconds_range: Range[float] | None = None
    takes_options: bool = False  # fps, steps, guidance and negative prompt
    takes_seed: bool = False
    image_size: Size | None = None  # the only size of a first frame; None: any


@dataclass(frozen=True, slots=True)
class Rendition:
    """A spec as the provider will render it, and how that differs from the request."""

    model: ProviderModel
    spec: VideoSpec
    changes: tuple[str, ...]
    usd: float
    may_resize: bool = False  # the tenant allows the first frame to be resized


@dataclass(frozen=True, slots=True)
class ProviderTask:
    """One job for a provider. Starts with the same `token` are one job at the provider."""

    job_id: JobId
    token: str
    rendition: Rendition
    read_source: Callable[[], Iterator[bytes]] | None = None


class InvocationState(StrEnum):
    """The state of a job at the provider."""

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the provider reports about a job."""

    id: InvocationId
    state: InvocationState
    fraction: float | None = None
    message: str = ""
    poll_after_seconds: float | None = None


class Provider(Protocol):
    """Renders jobs elsewhere. Raises ProviderError subclasses; `retryable` tells whether a retry can help."""

    @property
    def name(self) -> str: ...

    def models(self) -> tuple[ProviderModel, ...]:
        """The models that can be used now. Raises ProviderUnusable (retired model, missing permission)."""
        ...

    def adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition:
        """The nearest rendition that the policy allows. Raises ProviderCannot with the obstacles."""
        ...

    def start(self, task: ProviderTask) -> InvocationId:
        """Start rendering. Idempotent by token."""
        ...

    def poll(self, invocation_id: InvocationId) -> Invocation:
        """The state of a job. Cheap; the caller decides how often."""
        ...

    def fetch(self, invocation_id: InvocationId) -> Iterator[bytes]:
        """The finished clip as a stream; may be called again."""
        ...

    def discard(self, invocation_id: InvocationId) -> None:
        """Delete the provider's copy of a clip. Idempotent."""
        ...

    def cancel(self, invocation_id: InvocationId) -> None:
        """Cancel the job where the provider supports it. Idempotent."""
        ...
