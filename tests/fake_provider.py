"""A fake provider for tests of routing."""

from dataclasses import dataclass, field, replace

from filmgate.errors import ProviderCannot, ProviderError, ProviderThrottled
from filmgate.jobs import InvocationId
from filmgate.providers.base import Invocation, InvocationState, ProviderModel, Rendition

MODEL = ProviderModel(
    provider="elsewhere",
    model="ray",
    region="us-west-2",
    sizes=(),
    seconds=(),
    fps=None,
    usd_per_second=0.5,
    expected_seconds=30.0,
    max_prompt_chars=4000,
    takes_image=False,
)


@dataclass
class FakeProvider:
    """Renders every size and length, or only `size`; throttles or fails on demand."""

    model: ProviderModel = MODEL
    is_throttling: bool = False
    is_down: bool = False
    size: tuple[int, int] | None = None
    starts: list[str] = field(default_factory=list)
    adaptations: int = 0
    name: str = "elsewhere"

    def models(self):
        if self.is_down:
            raise ProviderError("no answer")
        return (self.model,)

    def adapt(self, spec, policy):
        self.adaptations += 1
        if spec.source is not None and not self.model.takes_image:
            raise ProviderCannot("it renders from text only")
        width, height = self.size or (spec.width, spec.height)
        if (width, height) != (spec.width, spec.height) and not policy.may_resize:
            raise ProviderCannot(f"{spec.size} would become {width}x{height}")
        near = replace(spec, model=self.model.model, width=width, height=height)
        changes = () if near.size == spec.size else (f"size {spec.size} -> {near.size}",)
        return Rendition(self.model, near, changes, spec.seconds * self.model.usd_per_second)

    def start(self, task):
        if self.is_throttling:
            raise ProviderThrottled("too many requests")
        self.starts.append(task.token)
        return InvocationId(task.token)

    def poll(self, invocation_id):
        return Invocation(invocation_id, InvocationState.COMPLETED)

    def fetch(self, invocation_id):
        yield b"clip"

    def discard(self, invocation_id):
        pass

    def cancel(self, invocation_id):
        pass
