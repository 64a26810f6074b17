"""GET /v1/models: the models and their limits."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from filmgate.api.auth import Reader
from filmgate.api.openapi import PROBLEMS
from filmgate.api.services import services_of
from filmgate.jobs import SourceKind
from filmgate.models.adapters import AdapterCard
from filmgate.models.cards import ModelCard, ModelRegistry
from filmgate.models.quality import levels_of

router = APIRouter(prefix="/v1/models", tags=["models"], responses=PROBLEMS)


class SizeLimits(BaseModel):
    """The sizes a model renders: only the default if `is_fixed`, else multiples of `multiple`."""

    default: str
    multiple: int
    min_side: int
    max_side: int
    max_pixels: int
    is_fixed: bool


class Range(BaseModel):
    """A number's default and bounds."""

    default: float
    min: float
    max: float


class QualityLevel(BaseModel):
    """A value of `quality` in a request, and how its clips differ from `full`."""

    name: str
    description: str


class ModelLimits(BaseModel):
    """The limits of a model."""

    size: SizeLimits
    seconds: Range
    fps: Range
    steps: Range
    guidance: Range
    sources: list[SourceKind]


class Adapter(BaseModel):
    """A LoRA adapter that the caller can name in `lora`, and the defaults of requests that use it."""

    name: str
    scale: float
    steps: int | None
    guidance: float | None


class Model(BaseModel):
    """A model as in the OpenAI API, with its limits and adapters."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    is_default: bool
    is_served: bool = Field(description="Whether a worker serves it now.")
    aliases: list[str]
    limits: ModelLimits
    quality_levels: list[QualityLevel] = Field(description="The levels it renders, the best one first.")
    adapters: list[Adapter]


class ModelList(BaseModel):
    """Every model."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("")
async def list_models(request: Request, caller: Reader) -> ModelList:
    """All models: models with a card, and models that live workers serve."""
    services = services_of(request)
    adapters = services.adapters.visible(caller.id)

    def read() -> list[Model]:
        return [to_model(card, services.models, adapters) for card in services.models.cards]

    return ModelList(data=await services.call(read))


@router.get("/{model:path}")  # hub ids contain a slash
async def retrieve_model(request: Request, model: str, caller: Reader) -> Model:
    """One model, by name or alias."""
    services = services_of(request)
    adapters = services.adapters.visible(caller.id)
    return await services.call(lambda: to_model(services.models.find(model), services.models, adapters))


def to_model(card: ModelCard, models: ModelRegistry, adapters: Sequence[AdapterCard]) -> Model:
    """A model card as JSON, with its adapters."""
    limits = card.limits
    frames, fps = limits.frames, limits.fps.default
    return Model(
        id=card.name,
        created=card.created,
        owned_by=card.owner,
        is_default=models.is_default(card),
        is_served=models.is_served(card),
        aliases=models.aliases_of(card),
        limits=ModelLimits(
            size=SizeLimits(**asdict(limits.size) | {"default": str(limits.size.default)}),
            seconds=Range(
                default=frames.seconds(frames.default, fps),
                min=frames.seconds(frames.min, fps),
                max=frames.seconds(frames.max, fps),
            ),
            fps=Range(**asdict(limits.fps)),
            steps=Range(**asdict(limits.steps)),
            guidance=Range(**asdict(limits.guidance)),
            sources=sorted(limits.sources),
        ),
        quality_levels=[
            QualityLevel(name=level.name, description=level.description)
            for level in levels_of(limits.quality)
        ],
        adapters=[
            Adapter(name=each.name, scale=each.scale, steps=each.steps, guidance=each.guidance)
            for each in adapters
            if each.model == card.name
        ],
    )
