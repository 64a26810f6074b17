"""From what somebody typed to a request the model can fulfil: defaults filled in, limits checked."""

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from PIL import Image, ImageOps

from filmgate.errors import UsageError
from filmgate.pipeline.denoise.denoise import ClipRequest
from filmgate.pipeline.loading.loader import Limits, VideoModel

MAX_SECONDS = 600.0
MAX_IMAGE_PIXELS = 64_000_000
MAX_SEED = 2**63 - 1
MAX_GUIDANCE = 100
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for; None is the model's default."""

    size: str | None = None
    seconds: float | None = None
    frames: int | None = None
    fps: int | None = None
    steps: int | None = None
    seed: int | None = None
    guidance: float | None = None
    image: Path | BinaryIO | None = None


def to_request(model: VideoModel, wish: Wish) -> ClipRequest:
    """The request for this model; raises UsageError with the option's name and the nearest allowed value."""
    defaults, limits = model.defaults, model.limits
    width, height = parse_size(wish.size) if wish.size else (defaults.width, defaults.height)
    _check_size(width, height, limits)
    fps = _at_least_one(wish.fps, defaults.fps, "--fps")
    frames = _frames(wish, fps, defaults.frames, limits)
    image = _image(wish.image, limits, (width, height))
    return ClipRequest(
        width=width,
        height=height,
        frames=frames,
        fps=fps,
        steps=_at_least_one(wish.steps, defaults.steps, "--steps"),
        seed=secrets.randbits(32) if wish.seed is None else _within(wish.seed, MAX_SEED, "--seed"),
        guidance=_within(
            defaults.guidance if wish.guidance is None else wish.guidance, MAX_GUIDANCE, "--guidance"
        ),
        image=image,
    )


def parse_size(text: str) -> tuple[int, int]:
    """`1280x720` as (width, height)."""
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise UsageError(
            f"{text!r} is not a size; write it as WIDTHxHEIGHT, such as 1280x720", option="--size"
        )
    return int(width), int(height)


def _check_size(width: int, height: int, limits: Limits) -> None:
    step, largest = limits.size_step, limits.max_size
    allowed = [min(max(round(side / step) * step, step), largest // step * step) for side in (width, height)]
    if [width, height] != allowed:
        raise UsageError(
            f"{width}x{height} is not a size this model makes (multiples of {step}, up to {largest}); "
            f"the nearest is {allowed[0]}x{allowed[1]}",
            option="--size",
        )


def _frames(wish: Wish, fps: int, default: int, limits: Limits) -> int:
    if wish.frames is not None and wish.seconds is not None:
        raise UsageError("give --frames or --seconds, not both", option="--frames")
    longest = limits.max_frames
    if wish.frames is not None:
        nearest = min(max(nearest_frames(wish.frames, limits.frame_step), 1), longest)
        if wish.frames != nearest:
            raise UsageError(
                f"this model makes {limits.frame_step}k+1 frames, up to {longest}; "
                f"the nearest to {wish.frames} is {nearest}",
                option="--frames",
            )
        return nearest
    if wish.seconds is None:
        return default
    if not 0 < wish.seconds <= MAX_SECONDS:
        raise UsageError(f"{wish.seconds:g} is not between 0 and {MAX_SECONDS:g} seconds", option="--seconds")
    frames = nearest_frames(wish.seconds * fps, limits.frame_step)
    if frames > longest:
        raise UsageError(f"this model makes at most {longest / fps:.1f} s at {fps} fps", option="--seconds")
    return frames


def nearest_frames(frames: float, step: int) -> int:
    """The nearest number of the form step * k + 1."""
    return max(round((frames - 1) / step), 0) * step + 1


def _at_least_one(value: int | None, default: int, option: str) -> int:
    if value is not None and not 1 <= value <= 1000:
        raise UsageError(f"{value} is not between 1 and 1000", option=option)
    return default if value is None else value


def _within(value: Number, largest: int, option: str) -> Number:
    if not 0 <= value <= largest:
        raise UsageError(f"{value} is not between 0 and {largest}", option=option)
    return value


def _image(path: Path | BinaryIO | None, limits: Limits, size: tuple[int, int]) -> Image.Image | None:
    if path is None:
        if limits.needs_image:
            raise UsageError("this model starts from a picture; pass one with --image", option="--image")
        return None
    if not limits.takes_image:
        raise UsageError(
            "this model takes text only; leave --image out or choose an image model", option="--image"
        )
    try:
        with Image.open(path) as picture:
            if picture.width * picture.height > MAX_IMAGE_PIXELS:
                raise UsageError(f"{_name(path)} has more than {MAX_IMAGE_PIXELS:,} pixels", option="--image")
            upright = ImageOps.exif_transpose(picture).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as exc:
        raise UsageError(f"{_name(path)} is not a readable picture: {exc}", option="--image") from exc
    return ImageOps.fit(upright, size, Image.Resampling.LANCZOS)


def _name(image: Path | BinaryIO) -> str:
    return str(image) if isinstance(image, Path) else "the picture"
