"""What a model can render: one type, filled from a card or a loaded pipeline.

A provider's model lists sizes and lengths instead: `providers/base.py`.
"""

from dataclasses import dataclass
from math import isnan
from typing import Generic, TypeVar

from filmgate.errors import UnsupportedOperation, UnsupportedValue
from filmgate.jobs import Size, SourceKind, VideoSpec
from filmgate.models.quality import FULL

Number = TypeVar("Number", int, float)

_VERBS = {
    SourceKind.IMAGE: ("start from an image", "input_reference"),
    SourceKind.REMIX: ("remix a clip", "video_id"),
    SourceKind.EDIT: ("edit a clip", "video"),
    SourceKind.EXTEND: ("extend a clip", "video"),
}


@dataclass(frozen=True, slots=True)
class Range(Generic[Number]):
    """A number's default and bounds, both included."""

    default: Number
    min: Number
    max: Number

    def check(self, name: str, value: Number | None) -> Number:
        """The value, or the default for None. Raises UnsupportedValue."""
        if value is None:
            return self.default
        if not self.min <= value <= self.max:  # NaN is in no range
            allowed = f"between {self.min:g} and {self.max:g}" if self.min < self.max else f"{self.max:g}"
            nearest = f"; the nearest is {self.nearest(value):g}" if self.min < self.max else ""
            raise UnsupportedValue(f"{name} must be {allowed}, got {value:g}{nearest}", option=name)
        return value

    def nearest(self, value: Number) -> Number:
        """The value in the range closest to this one; the default for NaN."""
        return self.default if isnan(value) else min(max(value, self.min), self.max)


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Both sides are multiples of `multiple` within [min_side, max_side]; their product is bounded too.

    `is_fixed`: only the default is allowed.
    """

    default: Size
    multiple: int
    min_side: int
    max_side: int
    max_pixels: int
    is_fixed: bool = False

    def allows(self, size: Size) -> bool:
        if self.is_fixed:
            return size == self.default
        return size.pixels <= self.max_pixels and all(
            side % self.multiple == 0 and self.min_side <= side <= self.max_side for side in size
        )

    def nearest(self, size: Size) -> Size:
        """The allowed size closest to this one. Its shape is kept as far as the limits permit."""
        if self.is_fixed:
            return self.default
        width, height = (max(side, 1) for side in size)
        shrink = min(1.0, self.max_side / max(width, height), (self.max_pixels / (width * height)) ** 0.5)
        near = Size(self._snap(width * shrink), self._snap(height * shrink))
        while near.pixels > self.max_pixels:
            is_wide = near.width >= near.height
            near = Size(near.width - self.multiple * is_wide, near.height - self.multiple * (not is_wide))
        return near

    def check(self, model: str, size: Size | None) -> Size:
        """The size, or the default for None. Raises UnsupportedValue with the nearest allowed size."""
        if size is None:
            return self.default
        if self.allows(size):
            return size
        if self.is_fixed:
            raise UnsupportedValue(f"{model} renders {self.default} only", option="size")
        raise UnsupportedValue(
            f"{model} cannot render {size}; the nearest size is {self.nearest(size)} (width and height are "
            f"multiples of {self.multiple} from {self.min_side} to {self.max_side}, "
            f"at most {self.max_pixels} pixels in all)",
            option="size",
        )

    def _snap(self, side: float) -> int:
        low, high = -(-self.min_side // self.multiple), self.max_side // self.multiple
        return min(max(round(side / self.multiple), low), high) * self.multiple


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Frame counts are `step * k + offset`: a causal decoder yields one frame, then `step` at a time."""

    default: int
    step: int
    offset: int
    min: int
    max: int

    def nearest(self, frames: float) -> int:
        """The allowed frame count closest to this one."""
        bounded = min(max(frames, self.min), self.max)
        count = self.offset + self.step * round((bounded - self.offset) / self.step)
        return count - self.step if count > self.max else count + self.step if count < self.min else count

    def count(self, seconds: float, fps: float) -> int:
        """Frames of a clip whose first and last frame are this many seconds apart, not yet bounded."""
        return self.offset + self.step * round(seconds * fps / self.step)

    def seconds(self, frames: int, fps: float) -> float:
        """The length as clients state it: 33 frames at 16 per second are 2 seconds."""
        return (frames - self.offset) / fps

    def check(self, model: str, seconds: float | None, frames: int | None, fps: float) -> int:
        """The frame count of a request, or the default. Raises UnsupportedValue with the nearest length."""
        if frames is not None:
            return self._check_frames(model, frames, seconds)
        if seconds is None:
            return self.default
        count = self.count(seconds, fps) if 0 < seconds < 1e6 else 0
        if not self.min <= count <= self.max:
            shortest, longest = self.seconds(self.min, fps), self.seconds(self.max, fps)
            nearest = longest if seconds > longest else shortest
            raise UnsupportedValue(
                f"{model} renders {shortest:g} to {longest:g} seconds at {fps:g} frames per second; "
                f"the nearest length is {nearest:g} seconds",
                option="seconds",
            )
        return count

    def _check_frames(self, model: str, frames: int, seconds: float | None) -> int:
        if seconds is not None:
            raise UnsupportedValue("set seconds or frames, not both", option="frames")
        nearest = self.nearest(frames)
        if frames != nearest:
            raise UnsupportedValue(
                f"{model} renders {self.min}, {self.min + self.step}, {self.min + 2 * self.step} ... "
                f"{self.max} frames; the nearest to {frames} is {nearest}",
                option="frames",
            )
        return frames


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Everything a request may ask of a model."""

    size: SizeLimits
    frames: FrameLimits
    fps: Range[int]
    steps: Range[int]
    guidance: Range[float]
    sources: frozenset[SourceKind] = frozenset()
    needs_image: bool = False
    quality: tuple[str, ...] = (FULL,)

    def check_defaults(self) -> None:
        """Raises UnsupportedValue or TypeError for a default that a request could not name."""
        size, frames, fps, steps = (
            self.size.default,
            self.frames.default,
            self.fps.default,
            self.steps.default,
        )
        if not all(isinstance(value, int) for value in (*size, frames, fps, steps)):
            raise TypeError("width, height, frames, fps and steps must be whole numbers")
        for option, name, value in (
            ("size", "multiple", self.size.multiple),
            ("frames", "step", self.frames.step),
        ):
            if value < 1:
                raise UnsupportedValue(f"{name} must be at least 1, got {value}", option=option)
        self.size.check("the model", size)
        self.frames.check("the model", None, frames, fps)
        self.fps.check("fps", fps)
        self.steps.check("steps", steps)
        self.guidance.check("guidance", self.guidance.default)

    def check(self, spec: VideoSpec) -> None:
        """Raises UsageError subclasses when this model cannot render a spec made from another card."""
        self.check_source(spec.model, spec.source.kind if spec.source is not None else None)
        self.size.check(spec.model, spec.size)
        self.frames.check(spec.model, None, spec.frames, spec.fps)
        self.check_quality(spec.model, spec.quality)

    def check_quality(self, model: str, level: str | None, default: str = FULL) -> str:
        """The level, or the default for None if the model has it. Raises UnsupportedValue with the list."""
        if level is None:
            return default if default in self.quality else FULL
        if level not in self.quality:
            raise UnsupportedValue(
                f"{model} has no quality level {level[:20]!r}; use {', '.join(self.quality)}",
                option="quality",
            )
        return level

    def check_source(self, model: str, kind: SourceKind | None) -> None:
        """Raises UnsupportedOperation if the model cannot start from this, or needs an image."""
        if kind is None and self.needs_image:
            raise UnsupportedOperation(
                f"{model} turns an image into a video; send an image", option="input_reference"
            )
        if kind is not None and kind not in self.sources:
            verb, option = _VERBS[kind]
            raise UnsupportedOperation(f"{model} cannot {verb}", option=option)
