"""From what was asked to a complete spec: defaults filled in, every value within the model's limits."""

import re
import secrets
import unicodedata
from dataclasses import dataclass, field

from filmgate.errors import InvalidField, UnsupportedValue, UnsupportedVerb
from filmgate.jobs import JobId, SourceKind, VideoSpec
from filmgate.models.cards import Limits, ModelCard, Number

_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
_ALLOWED_CONTROLS = "\n\r\t"


@dataclass(frozen=True, slots=True)
class Upload:
    """A file as it was sent, or fetched: nothing about it is believed yet."""

    option: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """What a client asked for; None where it left the choice to us."""

    prompt: str = field(repr=False)
    model: str | None = None
    size: str | None = None
    seconds: float | None = None
    fps: int | None = None
    steps: int | None = None
    seed: int | None = None
    guidance: float | None = None
    negative_prompt: str | None = field(default=None, repr=False)
    reference: Upload | None = None
    reference_url: str | None = field(default=None, repr=False)
    verb: SourceKind | None = None
    source_id: JobId | None = None


def complete_spec(request: VideoRequest, card: ModelCard, prompt_max_chars: int) -> VideoSpec:
    """The spec of a request. Raises InvalidField, UnsupportedValue and UnsupportedVerb."""
    check_text("prompt", request.prompt, prompt_max_chars)
    if not request.prompt.strip():
        raise InvalidField("prompt is empty", option="prompt")
    if request.negative_prompt is not None:
        check_text("negative_prompt", request.negative_prompt, prompt_max_chars)
    kind = source_kind(request)
    if kind is not None and kind not in card.sources:
        raise UnsupportedVerb(f"{card.name} cannot {_VERBS[kind]}", option=_FIELDS[kind])
    width, height = _size(request.size, card)
    fps = _within("fps", request.fps, card.fps)
    frames = _frames(request.seconds, fps, card)
    if request.seed is not None and not 0 <= request.seed < 2**63:
        raise UnsupportedValue("seed is a whole number from 0 to 2**63 - 1", option="seed")
    return VideoSpec(
        model=card.name,
        prompt=request.prompt,
        width=width,
        height=height,
        seconds=frames / fps,
        fps=fps,
        steps=_within("steps", request.steps, card.steps),
        # Chosen here, once: every attempt renders the same clip, and a remix starts from the same noise.
        seed=secrets.randbits(32) if request.seed is None else request.seed,
        guidance=_within("guidance", request.guidance, card.guidance),
        negative_prompt=request.negative_prompt,
    )


_VERBS = {
    SourceKind.IMAGE: "start from an image",
    SourceKind.REMIX: "remix a clip",
    SourceKind.EDIT: "edit a clip",
    SourceKind.EXTEND: "extend a clip",
}
_FIELDS = {
    SourceKind.IMAGE: "input_reference",
    SourceKind.REMIX: "video_id",
    SourceKind.EDIT: "video",
    SourceKind.EXTEND: "video",
}


def source_kind(request: VideoRequest) -> SourceKind | None:
    """What the new clip starts from, if from anything."""
    if request.verb is not None:
        return request.verb
    has_reference = request.reference is not None or request.reference_url is not None
    return SourceKind.IMAGE if has_reference else None


def check_text(option: str, text: str, max_chars: int) -> None:
    """Text that can be stored and shown: bounded, no control characters, no broken code points."""
    if len(text) > max_chars:
        raise UnsupportedValue(
            f"{option} has {len(text)} characters; at most {max_chars} are taken", option=option
        )
    if text.isprintable():
        return
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs") and character not in _ALLOWED_CONTROLS:
            raise InvalidField(
                f"{option} contains the control character U+{ord(character):04X}", option=option
            )


def _size(size: str | None, card: ModelCard) -> tuple[int, int]:
    if size is None:
        return card.size.default
    match = _SIZE.fullmatch(size)
    if match is None:
        raise InvalidField('size is written WIDTHxHEIGHT, for example "256x256"', option="size")
    width, height = int(match[1]), int(match[2])
    limits = card.size
    if width and height and limits.allows(width, height):
        return width, height
    near_width, near_height = limits.nearest(max(width, 1), max(height, 1))
    raise UnsupportedValue(
        f"{card.name} does not render {width}x{height}; the nearest size is {near_width}x{near_height} "
        f"(sides are multiples of {limits.multiple} from {limits.min_side} to {limits.max_side}, "
        f"at most {limits.max_pixels} pixels)",
        option="size",
    )


def _frames(seconds: float | None, fps: int, card: ModelCard) -> int:
    limits = card.frames
    if seconds is None:
        return limits.default
    shortest, longest = limits.seconds(limits.min, fps), limits.seconds(limits.max, fps)
    frames = limits.count(seconds, fps) if -1 < seconds < 1e6 else 0
    if not limits.min <= frames <= limits.max:
        nearest = longest if seconds > longest else shortest
        raise UnsupportedValue(
            f"{card.name} renders {shortest:g} to {longest:g} seconds at {fps} frames per second; "
            f"the nearest is {nearest:g}",
            option="seconds",
        )
    return frames


def _within(option: str, value: Number | None, limits: Limits[Number]) -> Number:
    if value is None:
        return limits.default
    if not limits.min <= value <= limits.max:
        nearest = limits.min if value < limits.min else limits.max
        raise UnsupportedValue(
            f"{option} is {limits.min:g} to {limits.max:g}; the nearest is {nearest:g}", option=option
        )
    return value
