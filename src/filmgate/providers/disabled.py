"""No provider: nothing is offered, so nothing is ever sent away."""

from collections.abc import Iterator

from filmgate.errors import ProviderCannot, ProviderUnusable
from filmgate.jobs import InvocationId, ManagedPolicy, VideoSpec
from filmgate.providers.base import Invocation, ManagedTask, Offer, Rendition

_WORDS = "no managed provider is configured; set fallback.provider"


class DisabledProvider:
    """The default: every verb that would reach somebody else refuses."""

    @property
    def name(self) -> str:
        return "disabled"

    def offers(self) -> tuple[Offer, ...]:
        return ()

    def adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition:
        raise ProviderCannot(_WORDS)

    def start(self, task: ManagedTask) -> InvocationId:
        raise ProviderUnusable(_WORDS)

    def poll(self, invocation_id: InvocationId) -> Invocation:
        raise ProviderUnusable(_WORDS)

    def fetch(self, invocation_id: InvocationId) -> Iterator[bytes]:
        raise ProviderUnusable(_WORDS)

    def discard(self, invocation_id: InvocationId) -> None:
        raise ProviderUnusable(_WORDS)

    def cancel(self, invocation_id: InvocationId) -> None:
        raise ProviderUnusable(_WORDS)
