"""No provider: every call fails, so all jobs stay on local GPUs."""

from collections.abc import Iterator

from filmgate.errors import ProviderCannot, ProviderUnusable
from filmgate.jobs import InvocationId, ManagedPolicy, VideoSpec
from filmgate.providers.base import Invocation, ProviderModel, ProviderTask, Rendition

_MESSAGE = "no managed provider is configured; set provider.kind"


class DisabledProvider:
    """The default provider."""

    @property
    def name(self) -> str:
        return "disabled"

    def models(self) -> tuple[ProviderModel, ...]:
        return ()

    def adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition:
        raise ProviderCannot(_MESSAGE)

    def start(self, task: ProviderTask) -> InvocationId:
        raise ProviderUnusable(_MESSAGE)

    def poll(self, invocation_id: InvocationId) -> Invocation:
        raise ProviderUnusable(_MESSAGE)

    def fetch(self, invocation_id: InvocationId) -> Iterator[bytes]:
        raise ProviderUnusable(_MESSAGE)

    def discard(self, invocation_id: InvocationId) -> None:
        raise ProviderUnusable(_MESSAGE)

    def cancel(self, invocation_id: InvocationId) -> None:
        raise ProviderUnusable(_MESSAGE)
