"""Managed APIs: what they charge, where they are, whether they still live."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VideoApi:
    """A managed video model, billed by the second of video."""

    id: str
    name: str
    state: str
    regions: tuple[str, ...]
    max_height: int
    clip_seconds: tuple[int, ...]
    usd_per_second: float
    source: str
    as_of: str
    end_of_life: str | None = None
    typical_seconds: float | None = None
    concurrency: int | None = None
    note: str | None = None

    @property
    def is_available(self) -> bool:
        return self.state == "active"

    def usd_per_clip(self, seconds: float) -> float:
        """What one clip is billed at: the shortest length offered that covers it, else several clips."""
        longest = max(self.clip_seconds)
        whole, rest = divmod(seconds, longest)
        tail = min((s for s in self.clip_seconds if s >= rest - 1e-9), default=longest) if rest > 1e-9 else 0
        return (whole * longest + tail) * self.usd_per_second


@dataclass(frozen=True, slots=True)
class TextApi:
    """A managed language model, billed by the million tokens."""

    id: str
    name: str
    region: str
    usd_per_million_input: float
    usd_per_million_output: float
    source: str
    as_of: str
