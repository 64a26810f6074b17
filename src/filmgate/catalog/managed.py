"""Managed APIs: what they charge, where they are, whether they still live."""

from dataclasses import dataclass

SLACK_SECONDS = 0.25


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
        """What one clip is billed at: the shortest length offered that covers it, else several clips.

        A quarter of a second over is forgiven: 81 frames at 16 a second are a five-second clip to everybody.
        """
        longest = max(self.clip_seconds)
        whole, rest = divmod(max(seconds - SLACK_SECONDS, 0.0), longest)
        tail = min((s for s in self.clip_seconds if s >= rest), default=longest)
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
