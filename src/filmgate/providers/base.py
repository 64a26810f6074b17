"""The Provider port: a managed video API that renders jobs that local GPUs would finish too late.

The state of a provider job is in the `invocations` table, not in the provider object: the next process that
leases the job resumes it. All methods block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from filmgate.jobs import InvocationId, ManagedPolicy, Size, VideoSpec
from filmgate.models.limits import Range, SizeLimits
from filmgate.models.quality import FULL


@dataclass(frozen=True, slots=True)
class ProviderModel:
    """One model of a provider: what it renders, how long that takes and its price.

    Sizes are listed in `sizes` or bounded by `size_limits`, lengths in `seconds` or by `seconds_range`.
    If neither is set, the model renders any.
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
    max_concurrent: int | None = None  # None: no limit
    size_limits: SizeLimits | None = None
    seconds_range: Range[float] | None = None
    takes_options: bool = False  # fps, steps, guidance and negative prompt
    takes_seed: bool = False
    quality: tuple[str, ...] = (FULL,)
    image_size: Size | None = None  # the only size of a first frame; None: any


@dataclass(frozen=True, slots=True)
class Rendition:
    """A spec as the provider will render it, and how that differs from the request."""

    model: ProviderModel
    spec: VideoSpec
    changes: tuple[str, ...]
    usd: float
    may_resize: bool = False  # the tenant allows the first frame to be resized

    @property
    def expected_seconds(self) -> float:
        """From start to finished clip, in proportion to the length of the clip."""
        lengths = self.model.seconds
        return self.model.expected_seconds * max(self.spec.seconds / min(lengths) if lengths else 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class ProviderTask:
    """One job for a provider. Repeated starts with the same `token` create one job at the provider."""

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
    """Renders jobs elsewhere. Raises ProviderError subclasses; `retryable` is true if a retry can help."""

    @property
    def name(self) -> str: ...

    def models(self) -> tuple[ProviderModel, ...]:
        """The models that can be used now. Raises ProviderUnusable: retired model, missing permission."""
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
        """The finished clip as a stream. Can be repeated."""
        ...

    def discard(self, invocation_id: InvocationId) -> None:
        """Delete the provider's copy of a clip. Idempotent."""
        ...

    def cancel(self, invocation_id: InvocationId) -> None:
        """Cancel the job where the provider supports it. Idempotent."""
        ...
