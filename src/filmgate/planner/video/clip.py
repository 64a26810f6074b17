"""The clip to plan for, checked against the limits of a catalog model."""

from dataclasses import dataclass

from filmgate.catalog.video_models import VideoModel
from filmgate.errors import UnsupportedValue
from filmgate.jobs import Size
from filmgate.models.limits import FrameLimits, Range, SizeLimits
from filmgate.models.quality import FULL, LEVEL_NAMES, full_steps

MAX_SIDE = 8192
MAX_PIXELS = 1 << 25
MAX_PIXEL_FRAMES = 1 << 33
MAX_STEPS = 1000
MAX_FPS = 240.0


@dataclass(frozen=True, slots=True)
class ClipShape:
    """The properties of a clip that determine its cost."""

    size: Size
    frames: int
    fps: float
    steps: int
    forwards_per_step: int
    quality: str = FULL

    @property
    def passes(self) -> float:
        """Passes through the denoiser that are computed at this quality level."""
        has_guidance = self.forwards_per_step > 1
        steps = full_steps(self.quality, self.steps, has_guidance=has_guidance)
        return steps * self.forwards_per_step

    @property
    def seconds(self) -> float:
        return self.frames / self.fps

    @property
    def pixels(self) -> int:
        return self.size.pixels


def size_limits(model: VideoModel) -> SizeLimits:
    """The catalog states the multiple; the planner has its own upper limits."""
    default = Size(model.defaults.width, model.defaults.height)
    multiple = model.size_multiple
    return SizeLimits(default, multiple, multiple, MAX_SIDE, MAX_PIXELS, is_fixed=model.is_fixed_shape)


def frame_limits(model: VideoModel, size: Size) -> FrameLimits:
    """Frame counts at a size; the upper limit keeps the pixels of a clip within MAX_PIXEL_FRAMES."""
    step = model.frame_step
    longest = 1 + (MAX_PIXEL_FRAMES // size.pixels - 1) // step * step
    return FrameLimits(model.defaults.frames, step, offset=1, min=1, max=longest)


def clip_for(  # noqa: PLR0913 - one argument per property of a clip
    model: VideoModel,
    *,
    size: Size | None = None,
    seconds: float | None = None,
    frames: int | None = None,
    fps: float | None = None,
    steps: int | None = None,
    quality: str = FULL,
) -> ClipShape:
    """A clip with the model's defaults for every value that is None.

    Raises UnsupportedValue, naming the closest value, when the model cannot render it.
    """
    defaults = model.defaults
    if quality not in LEVEL_NAMES:
        raise UnsupportedValue(
            f"there is no level {quality[:20]!r}; use {', '.join(LEVEL_NAMES)}", option="quality"
        )
    checked_size = size_limits(model).check(model.id, size)
    checked_fps = Range(float(defaults.fps), 1.0, MAX_FPS).check("fps", fps)
    return ClipShape(
        size=checked_size,
        frames=_check_length(model, frame_limits(model, checked_size), seconds, frames, checked_fps),
        fps=checked_fps,
        steps=Range(defaults.steps, 1, MAX_STEPS).check("steps", steps),
        forwards_per_step=defaults.forwards_per_step,
        quality=quality,
    )


def _check_length(
    model: VideoModel, limits: FrameLimits, seconds: float | None, frames: int | None, fps: float
) -> int:
    """The frame count. A length shorter than one step of the decoder is planned as one step."""
    if frames is None and seconds is not None and 0 < seconds < limits.step / fps:
        return limits.offset + limits.step
    return limits.check(model.id, seconds, frames, fps)
