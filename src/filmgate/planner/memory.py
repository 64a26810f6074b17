"""A memory budget for one GPU: its lines, the stages they are resident in, and the peak."""

from dataclasses import dataclass, replace

SAFETY_FACTOR = 1.2


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One line of a budget. `stages` are the stages in which it is resident."""

    name: str
    bytes: float
    stages: tuple[str, ...]
    is_estimate: bool


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """All lines of one GPU. The safety factor applies to estimates only."""

    lines: tuple[MemoryLine, ...]
    safety_factor: float

    def stage_bytes(self, stage: str) -> float:
        return sum(self._charged_bytes(line) for line in self.lines if stage in line.stages)

    @property
    def peak_stage(self) -> str:
        stages = dict.fromkeys(stage for line in self.lines for stage in line.stages)
        return max(stages, key=self.stage_bytes)

    @property
    def peak_bytes(self) -> float:
        return self.stage_bytes(self.peak_stage)

    def charged_lines(self) -> tuple[MemoryLine, ...]:
        """The lines with the safety factor applied."""
        return tuple(replace(line, bytes=self._charged_bytes(line)) for line in self.lines)

    def _charged_bytes(self, line: MemoryLine) -> float:
        return line.bytes * (self.safety_factor if line.is_estimate else 1.0)
