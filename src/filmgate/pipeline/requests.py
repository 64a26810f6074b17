"""From a complete spec to the request a device renders."""

from io import BytesIO

from PIL import Image, ImageOps

from filmgate.errors import InvalidField
from filmgate.jobs import VideoSpec
from filmgate.pipeline.denoise.denoise import ClipRequest

MAX_IMAGE_PIXELS = 64_000_000


def to_clip_request(spec: VideoSpec, image: bytes | None = None) -> ClipRequest:
    """The clip a spec describes; `image` is the first frame, decoded and fitted to the spec's size."""
    assert spec.steps is not None, "a complete spec names its steps"
    assert spec.seed is not None, "a complete spec names its seed"
    assert spec.guidance is not None, "a complete spec names its guidance"
    return ClipRequest(
        width=spec.width,
        height=spec.height,
        frames=spec.frames,
        fps=spec.fps,
        steps=spec.steps,
        seed=spec.seed,
        guidance=spec.guidance,
        image=None if image is None else _fit_image(image, spec.size),
    )


def _fit_image(data: bytes, size: tuple[int, int]) -> Image.Image:
    try:
        with Image.open(BytesIO(data)) as picture:
            if picture.width * picture.height > MAX_IMAGE_PIXELS:
                raise InvalidField(f"the image has more than {MAX_IMAGE_PIXELS:,} pixels", option="image")
            upright = ImageOps.exif_transpose(picture).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as exc:
        raise InvalidField(f"the image cannot be decoded: {exc}", option="image") from exc
    return ImageOps.fit(upright, size, Image.Resampling.LANCZOS)
