"""A request as the client sent it, and its spec: defaults filled in, every value checked."""

import secrets
import unicodedata
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Protocol

from filmgate.errors import InvalidField, SettingsError, UnsupportedValue
from filmgate.jobs import JobId, Size, SourceKind, VideoSpec
from filmgate.models.limits import ModelLimits
from filmgate.models.pixel_formats import check_pixel_format
from filmgate.models.quality import FULL, effective_level

if TYPE_CHECKING:  # `filmgate --help` needs no settings
    from filmgate.settings import AdmissionSettings

MAX_SEED = 2**63 - 1
_ALLOWED_CONTROLS = "\n\r\t"


class UploadedFile(Protocol):
    """A file as it was sent or fetched, not checked yet; `option` names the field it came in."""

    @property
    def option(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def data(self) -> bytes:
        """The content. May read it from disk: check `size_bytes` first."""
        ...


@dataclass(frozen=True, slots=True)
class Upload:
    """A file in memory."""

    option: str
    data: bytes = field(repr=False)

    @property
    def size_bytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """A request as the client sent it. None means that the model's default applies."""

    prompt: str = field(repr=False)
    model: str | None = None
    size: Size | None = None
    seconds: float | None = None
    frames: int | None = None
    fps: int | None = None
    steps: int | None = None
    seed: int | None = None
    guidance: float | None = None
    lora: str | None = None
    quality: str | None = None
    pixel_format: str | None = None
    negative_prompt: str | None = field(default=None, repr=False)
    image: UploadedFile | None = None
    image_url: str | None = field(default=None, repr=False)
    image_from: JobId | None = None  # an earlier video, whose image is used again
    verb: SourceKind | None = None
    source_id: JobId | None = None

    @property
    def source_kind(self) -> SourceKind | None:
        """The kind of source that the new clip starts from; None for a clip from text."""
        if self.verb is not None:
            return self.verb
        has_image = any(given is not None for given in (self.image, self.image_url, self.image_from))
        return SourceKind.IMAGE if has_image else None


def to_spec(
    request: VideoRequest,
    model: str,
    limits: ModelLimits,
    max_prompt_chars: int,
    scaled_sizes: tuple[Size, ...] = (),
    default_quality: str = FULL,
) -> VideoSpec:
    """The complete spec of a request. Raises InvalidField, UnsupportedValue and UnsupportedOperation.

    A size in `scaled_sizes` that the model cannot render is rendered at the nearest size and scaled. A
    `default_quality` that the model does not have is `full`.
    """
    _check_text("prompt", request.prompt, max_prompt_chars)
    if not request.prompt.strip() and not limits.needs_image:
        raise InvalidField("prompt is empty; describe what the clip shows", option="prompt")
    if request.negative_prompt is not None:
        _check_text("negative_prompt", request.negative_prompt, max_prompt_chars)
    limits.check_source(model, request.source_kind)
    scaled_to = (
        request.size if request.size in scaled_sizes and not limits.size.allows(request.size) else None
    )
    nearest = limits.size.nearest(scaled_to) if scaled_to is not None else request.size
    width, height = limits.size.check(model, nearest)
    fps = limits.fps.check("fps", request.fps)
    frames = limits.frames.check(model, request.seconds, request.frames, fps)
    steps = limits.steps.check("steps", request.steps)
    quality = limits.check_quality(model, request.quality, default_quality)
    return VideoSpec(
        model=model,
        prompt=request.prompt,
        width=width,
        height=height,
        seconds=frames / fps,
        fps=fps,
        steps=steps,
        seed=_seed(request.seed),
        guidance=limits.guidance.check("guidance", request.guidance),
        lora=request.lora,
        quality=effective_level(quality, steps),
        pixel_format=request.pixel_format,
        negative_prompt=request.negative_prompt,
        scaled_to=scaled_to,
    )


def check_request(
    request: VideoRequest, model: str, limits: ModelLimits, settings: "AdmissionSettings", codec: str
) -> VideoSpec:
    """The spec of a request under the limits of an installation. Raises UsageError."""
    check_pixel_format(request.pixel_format, codec)
    sizes = parse_sizes(settings.scaled_sizes, "admission.scaled_sizes")
    return to_spec(request, model, limits, settings.prompt_max_chars, sizes, settings.default_quality)


@cache
def parse_sizes(text: str, option: str) -> tuple[Size, ...]:
    """`1280x720,720x1280` as sizes. Raises SettingsError that names the setting: encoders need even sides."""
    try:
        sizes = tuple(Size.parse(size.strip()) for size in text.split(",") if size.strip())
    except InvalidField as exc:
        raise SettingsError(str(exc), option=option) from exc
    if odd := [size for size in sizes if size.width % 2 or size.height % 2 or not size.pixels]:
        raise SettingsError(f"width and height of {odd[0]} must be even", option=option)
    return sizes


def inherit(request: VideoRequest, spec: VideoSpec, limits: ModelLimits) -> VideoRequest:
    """The request with the spec's values for everything it leaves out, except texts and sources.

    For a request that starts from the clip of this spec.
    """
    inherited = {name: getattr(spec, name) for name in _INHERITED}
    inherited |= {"size": spec.clip_size, "seconds": limits.frames.seconds(spec.frames, spec.fps)}
    left_out = {name: value for name, value in inherited.items() if getattr(request, name) is None}
    return replace(request, **left_out)


_INHERITED = {f.name for f in fields(VideoRequest)} & {f.name for f in fields(VideoSpec)} - {
    "prompt",
    "negative_prompt",
}


def _seed(seed: int | None) -> int:
    """Chosen once, here: every attempt renders the same clip, and a remix starts from the same noise."""
    if seed is None:
        return secrets.randbits(32)
    if not 0 <= seed <= MAX_SEED:
        raise UnsupportedValue("seed must be between 0 and 2**63 - 1", option="seed")
    return seed


def _check_text(option: str, text: str, max_chars: int) -> None:
    """Text that can be stored and shown: bounded, no control characters, no broken code points."""
    if len(text) > max_chars:
        raise UnsupportedValue(
            f"{option} has {len(text)} characters; the limit is {max_chars}", option=option
        )
    if text.isprintable():
        return
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs") and character not in _ALLOWED_CONTROLS:
            raise InvalidField(
                f"{option} contains the control character U+{ord(character):04X}", option=option
            )
