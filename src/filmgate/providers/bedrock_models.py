"""The video models of Bedrock: what each renders, the JSON input that each expects, and its end of life.

Inputs follow the AWS documentation of 2026-09. Prices, quotas and end-of-life dates are in the catalog.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TypeAlias

from filmgate.catalog.loader import load_catalog
from filmgate.catalog.managed import VideoApi
from filmgate.errors import ProviderUnusable
from filmgate.jobs import Size, VideoSpec
from filmgate.providers.base import ProviderModel
from filmgate.settings import ProviderSettings

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

FPS = 24
PROVIDER = "bedrock"
_RAY_HEIGHTS = (540, 720)
_RAY_ASPECTS = tuple(Size(*aspect) for aspect in ((1, 1), (16, 9), (9, 16), (4, 3), (3, 4), (21, 9), (9, 21)))
_REEL_SIZE = Size(1280, 720)
_REEL_SHOT_SECONDS = 6
_REEL_SEEDS = 2_147_483_647


def ray_size(aspect: Size, height: int) -> Size:
    """The size of an aspect ratio at a resolution; `540p` and `720p` name the shorter side."""
    across, down = aspect
    if across >= down:
        return Size(height * across // down, height)
    return Size(height, height * down // across)


_RAY_SHAPES = {ray_size(a, h): (f"{a[0]}:{a[1]}", f"{h}p") for h in _RAY_HEIGHTS for a in _RAY_ASPECTS}


def ray_input(spec: VideoSpec, image: bytes | None) -> Json:
    """Luma Ray: text to video, or image to video with the image as the first frame."""
    aspect, resolution = _RAY_SHAPES[spec.size]
    payload: dict[str, Json] = {
        "prompt": spec.prompt,
        "aspect_ratio": aspect,
        "loop": False,
        "duration": f"{spec.seconds:g}s",
        "resolution": resolution,
    }
    if image is not None:
        source: Json = {"type": "base64", "media_type": "image/png", "data": b64encode(image).decode()}
        payload["keyframes"] = {"frame0": {"type": "image", "source": source}}
    return payload


def reel_input(spec: VideoSpec, image: bytes | None) -> Json:
    """Nova Reel: one six-second shot, optionally with a first frame, or several shots from one text."""
    config: dict[str, Json] = {
        "durationSeconds": int(spec.seconds),
        "fps": FPS,
        "dimension": str(spec.size),
        "seed": (spec.seed or 0) % _REEL_SEEDS,
    }
    if spec.seconds > _REEL_SHOT_SECONDS:
        return {
            "taskType": "MULTI_SHOT_AUTOMATED",
            "multiShotAutomatedParams": {"text": spec.prompt},
            "videoGenerationConfig": config,
        }
    params: dict[str, Json] = {"text": spec.prompt}
    if image is not None:
        params["images"] = [{"format": "png", "source": {"bytes": b64encode(image).decode()}}]
    return {"taskType": "TEXT_VIDEO", "textToVideoParams": params, "videoGenerationConfig": config}


@dataclass(frozen=True, slots=True)
class Shot:
    """A kind of request: the lengths, prompt length and first frame that it supports."""

    max_prompt_chars: int
    takes_image: bool
    renders: Callable[[float], bool] = lambda _seconds: True


@dataclass(frozen=True, slots=True)
class BedrockModel:
    """A model and how to call it."""

    id: str
    to_input: Callable[[VideoSpec, bytes | None], Json]
    shots: tuple[Shot, ...]
    sizes: Callable[[VideoApi], tuple[Size, ...]]
    takes_seed: bool = False
    image_size: Size | None = None


def _reel(model_id: str) -> BedrockModel:
    shots = (
        Shot(512, takes_image=True, renders=lambda s: s <= _REEL_SHOT_SECONDS),
        Shot(4000, takes_image=False, renders=lambda s: s > _REEL_SHOT_SECONDS),
    )
    return BedrockModel(
        model_id, reel_input, shots, lambda _: (_REEL_SIZE,), takes_seed=True, image_size=_REEL_SIZE
    )


def _ray_sizes(api: VideoApi) -> tuple[Size, ...]:
    return tuple(ray_size(aspect, api.max_height) for aspect in _RAY_ASPECTS)


MODELS = {
    model.id: model
    for model in (
        BedrockModel("luma.ray-v2:0", ray_input, (Shot(5000, takes_image=True),), _ray_sizes),
        _reel("amazon.nova-reel-v1:1"),
        _reel("amazon.nova-reel-v1:0"),
    )
}


def find_model(model_id: str) -> BedrockModel:
    """Raises ProviderUnusable that lists the known ids."""
    if model_id not in MODELS:
        known = ", ".join(MODELS)
        raise ProviderUnusable(f"Bedrock has no video model {model_id!r}; set provider.model to {known}")
    return MODELS[model_id]


def entries_of(model_id: str) -> tuple[VideoApi, ...]:
    """The catalog entries of a model, one per price."""
    apis = load_catalog().video_apis.values()
    return tuple(api for api in apis if api.id == model_id or api.id.startswith(f"{model_id}-"))


def list_models(model: BedrockModel, settings: ProviderSettings) -> tuple[ProviderModel, ...]:
    """One entry per price and kind of shot."""
    return tuple(
        ProviderModel(
            provider=PROVIDER,
            model=model.id,
            region=settings.region,
            sizes=model.sizes(api),
            seconds=seconds,
            fps=FPS,
            usd_per_second=api.usd_per_second,
            expected_seconds=api.typical_seconds or settings.expected_seconds,
            max_prompt_chars=shot.max_prompt_chars,
            takes_image=shot.takes_image,
            max_concurrent=api.concurrency,
            takes_seed=model.takes_seed,
            image_size=model.image_size,
        )
        for api in entries_of(model.id)
        for shot in model.shots
        if (seconds := tuple(float(s) for s in api.clip_seconds if shot.renders(s)))
    )


@dataclass(frozen=True, slots=True)
class LifeCycle:
    """A model's state and end of life, and where they were read."""

    state: str
    end_of_life: date | None
    source: str

    def check(self, model_id: str, today: date) -> None:
        """Raises ProviderUnusable when the model is retired or past its end of life."""
        if self.end_of_life is not None and self.end_of_life <= today:
            raise ProviderUnusable(
                f"{model_id} reached its end of life on {self.end_of_life} ({self.source}); "
                "set provider.model to another model"
            )
        if self.state == "retired":
            raise ProviderUnusable(f"{model_id} is retired ({self.source}); set provider.model to another")


def from_catalog(api: VideoApi, region: str) -> LifeCycle:
    """From the catalog. Raises ProviderUnusable when the model is not offered in the region."""
    if region not in api.regions:
        raise ProviderUnusable(
            f"{api.name} is offered in {', '.join(api.regions)}, not in {region} "
            f"(catalog of {api.as_of}); set provider.region"
        )
    end = date.fromisoformat(api.end_of_life) if api.end_of_life else None
    return LifeCycle(api.state, end, f"catalog of {api.as_of}")


def from_answer(status: str, end_of_life: datetime | None) -> LifeCycle:
    """From GetFoundationModel, which is newer than the catalog."""
    end = end_of_life.astimezone(UTC).date() if end_of_life is not None else None
    return LifeCycle(status.lower(), end, "GetFoundationModel")
