"""The Provider port: somebody else's GPUs, asked to render a job that ours would finish too late.

A provider is stateless towards us: what it was asked and what it answered is in the database (`invocations`),
so that whichever process leases the job next goes on where the last one stopped. All verbs block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from filmgate.jobs import InvocationId, JobId, ManagedPolicy, VideoSpec


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """Sizes and lengths of a provider that renders a range of them instead of a list."""

    multiple: int
    min_side: int
    max_side: int
    max_pixels: int
    min_seconds: float
    max_seconds: float


@dataclass(frozen=True, slots=True)
class Offer:
    """One model of a provider and what it can make, as values: routing decides on these alone."""

    provider: str
    model: str
    region: str | None
    sizes: tuple[tuple[int, int], ...]  # (width, height) it renders; empty: any
    seconds: tuple[float, ...]  # clip lengths it renders; empty: any
    fps: int | None
    usd_per_second: float
    expected_seconds: float  # from start to finished clip, for its shortest length
    max_prompt_chars: int
    takes_image: bool
    max_concurrent: int | None = None
    shapes: ShapeRange | None = None  # instead of `sizes` and `seconds`
    takes_knobs: bool = False  # fps, steps, guidance and negative prompt as we spell them
    takes_seed: bool = False
    image_size: tuple[int, int] | None = None  # the only size of a first frame; None: any


@dataclass(frozen=True, slots=True)
class Rendition:
    """A spec as a provider will really render it, and how that differs from what was asked."""

    offer: Offer
    spec: VideoSpec
    changes: tuple[str, ...]
    usd: float
    may_resize: bool = False  # the tenant lets its first frame be fitted to the offer


@dataclass(frozen=True, slots=True)
class ManagedTask:
    """One job for a provider. `token` makes a repeated start the same job over there."""

    job_id: JobId
    token: str
    rendition: Rendition
    read_source: Callable[[], Iterator[bytes]] | None = None


class InvocationState(StrEnum):
    """Where the provider's job is."""

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the provider says about a job it has taken."""

    id: InvocationId
    state: InvocationState
    fraction: float | None = None
    message: str = ""
    poll_after_seconds: float | None = None


class Provider(Protocol):
    """Renders jobs elsewhere. Raises ProviderError subclasses, which say whether another try makes sense."""

    @property
    def name(self) -> str: ...

    def offers(self) -> tuple[Offer, ...]:
        """What can be asked for now. Raises ProviderUnusable (an end-of-life model, a missing permission)."""
        ...

    def adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition:
        """The nearest rendition the policy allows. Raises ProviderCannot with what is in the way."""
        ...

    def start(self, task: ManagedTask) -> InvocationId:
        """Begin rendering. The same token begins it once, however often it is called."""
        ...

    def poll(self, invocation_id: InvocationId) -> Invocation:
        """How it stands. Cheap; the caller decides how often."""
        ...

    def fetch(self, invocation_id: InvocationId) -> Iterator[bytes]:
        """The finished clip, as a stream; may be opened again."""
        ...

    def discard(self, invocation_id: InvocationId) -> None:
        """Remove what the provider kept of a clip that is safe in our store. Idempotent."""
        ...

    def cancel(self, invocation_id: InvocationId) -> None:
        """Stop it where the provider can; where it cannot, nothing happens. Idempotent."""
        ...
