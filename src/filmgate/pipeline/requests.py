"""The request a device renders, made from a complete spec."""

from dataclasses import dataclass, field
from io import BytesIO

from PIL import Image, ImageOps, UnidentifiedImageError

from filmgate.errors import InvalidField
from filmgate.jobs import Size, VideoSpec
from filmgate.models.quality import FULL
from filmgate.pipeline.pictures import flatten

MAX_IMAGE_PIXELS = 64_000_000


@dataclass(frozen=True, slots=True)
class ClipRequest:
    """One clip to render, complete and checked against the model's limits.

    `owner` is whose clip it is, usually a tenant. Owners share no cached embeddings, and a buffer that holds
    frames of another owner is overwritten before it is used.
    """

    prompt: str = field(repr=False)
    width: int
    height: int
    frames: int
    fps: int
    steps: int
    seed: int
    guidance: float
    negative_prompt: str | None = field(default=None, repr=False)
    owner: str = ""
    lora: str | None = None
    quality: str = FULL
    pixel_format: str | None = None
    image: Image.Image | None = None
    scaled_to: Size | None = None


def to_clip_request(spec: VideoSpec, image: bytes | None = None, owner: str = "") -> ClipRequest:
    """The clip that a spec describes. `image`, the first frame, is cropped and resized to the spec's size."""
    assert spec.steps is not None, "a complete spec has steps"
    assert spec.seed is not None, "a complete spec has a seed"
    assert spec.guidance is not None, "a complete spec has a guidance scale"
    return ClipRequest(
        prompt=spec.prompt,
        width=spec.width,
        height=spec.height,
        frames=spec.frames,
        fps=spec.fps,
        steps=spec.steps,
        seed=spec.seed,
        guidance=spec.guidance,
        negative_prompt=spec.negative_prompt,
        owner=owner,
        lora=spec.lora,
        quality=spec.quality,
        pixel_format=spec.pixel_format,
        image=None if image is None else _fit_image(image, spec.size),
        scaled_to=spec.scaled_to,
    )


def _fit_image(data: bytes, size: tuple[int, int]) -> Image.Image:
    try:
        with Image.open(BytesIO(data)) as picture:
            if picture.width * picture.height > MAX_IMAGE_PIXELS:
                raise InvalidField(f"the image has more than {MAX_IMAGE_PIXELS:,} pixels", option="image")
            pixels = flatten(picture)
    except UnidentifiedImageError as exc:  # whose text is the address of the buffer
        raise InvalidField(
            "the image cannot be decoded: it is not PNG, JPEG, WebP or another known format", option="image"
        ) from exc
    except (OSError, ValueError, SyntaxError, RuntimeError, Image.DecompressionBombError) as exc:
        raise InvalidField(f"the image cannot be decoded: {exc}", option="image") from exc
    return ImageOps.fit(pixels, size, Image.Resampling.LANCZOS)
