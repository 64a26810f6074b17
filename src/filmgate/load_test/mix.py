"""What a load test sends: kinds of clips with their shares, and when each request arrives."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from filmgate.errors import UsageError
from filmgate.jobs import Size

_NUMBERS = {"seconds": float, "steps": int, "guidance": float, "share": float}
_TEXTS = ("model", "size", "quality", "catalog")


@dataclass(frozen=True, slots=True)
class ClipKind:
    """One kind of clip. None means the model's default. `catalog` is the model's name in the planner."""

    model: str | None = None
    size: str | None = None
    seconds: float | None = None
    steps: int | None = None
    guidance: float | None = None
    quality: str | None = None
    share: float = 1.0
    catalog: str | None = None

    @property
    def options(self) -> dict[str, object]:
        """The fields of a request."""
        fields = {
            "model": self.model,
            "size": self.size,
            "seconds": None if self.seconds is None else f"{self.seconds:g}",
            "steps": self.steps,
            "guidance": self.guidance,
            "quality": self.quality,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.options.items()) or "defaults"


@dataclass(frozen=True, slots=True)
class Plan:
    """The requests of a load test: `times` are seconds after its start."""

    kinds: tuple[ClipKind, ...]
    times: tuple[float, ...] = field(repr=False)
    per_hour: float | None

    @property
    def is_saturated(self) -> bool:
        """Whether all requests arrive at once, so that the device never has to wait for one."""
        return self.per_hour is None


def parse_kind(text: str) -> ClipKind:
    """A kind of clip from `size=832x480,seconds=5,steps=4,share=2`. Raises UsageError."""
    values: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in (*_NUMBERS, *_TEXTS) or not value:
            known = ", ".join((*_TEXTS, *_NUMBERS))
            raise UsageError(f"{part!r} is not NAME=VALUE with one of {known}", option="--clip")
        try:
            values[name] = _NUMBERS[name](value) if name in _NUMBERS else value
        except ValueError as exc:
            raise UsageError(f"{value!r} is not a number for {name}", option="--clip") from exc
    if "size" in values:
        Size.parse(str(values["size"]), "--clip")
    kind = ClipKind(**values)  # type: ignore[arg-type]  # the names are checked above
    if kind.share <= 0:
        raise UsageError("share must be above 0", option="--clip")
    return kind


def plan_requests(
    kinds: Sequence[ClipKind], clips: int, per_hour: float | None, minutes: float | None, seed: int = 0
) -> Plan:
    """Draw the kinds by share, and the arrivals from a Poisson process. Without a rate, all arrive at 0."""
    if minutes is not None and per_hour is None:
        raise UsageError("a duration needs --per-hour; without a rate use --clips", option="--minutes")
    rng = random.Random(seed)  # noqa: S311 - arrivals, not keys
    times: list[float] = []
    now = 0.0
    while len(times) < clips if minutes is None else now <= minutes * 60:
        times.append(now)
        now += rng.expovariate(per_hour / 3600) if per_hour else 0.0
    drawn = rng.choices(kinds, [kind.share for kind in kinds], k=len(times))
    return Plan(tuple(drawn), tuple(times), per_hour)
