"""GET /v1/models: every model and its limits."""

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel

from filmgate.api.auth import Reader
from filmgate.api.openapi import PROBLEMS
from filmgate.api.services import stations_of
from filmgate.jobs import SourceKind
from filmgate.models.cards import ModelCard
from filmgate.models.limits import Range

router = APIRouter(prefix="/v1/models", tags=["models"], responses=PROBLEMS)


class SizeShape(BaseModel):
    """Sizes a model renders: sides are multiples of `multiple`."""

    default: str
    multiple: int
    min_side: int
    max_side: int
    max_pixels: int


class RangeShape(BaseModel):
    """A number's default and bounds."""

    default: float
    min: float
    max: float


class LimitsShape(BaseModel):
    """What a request may ask of a model."""

    size: SizeShape
    seconds: RangeShape
    fps: RangeShape
    steps: RangeShape
    guidance: RangeShape
    sources: list[SourceKind]


class Model(BaseModel):
    """A model, in the SDK's shape, with our limits beside it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    is_default: bool
    aliases: list[str]
    limits: LimitsShape


class ModelList(BaseModel):
    """Every model."""

    object: Literal["list"] = "list"
    data: list[Model]


@router.get("")
async def list_models(request: Request, _caller: Reader) -> ModelList:
    """Every model that can be asked for: those of the model cards, and those that live workers serve."""
    stations = stations_of(request)
    shelf = stations.gate.shelf
    cards = await stations.call(lambda: shelf.cards)
    return ModelList(data=[shape(card, is_default=card is shelf.default) for card in cards])


@router.get("/{model}")
async def retrieve_model(request: Request, model: str, _caller: Reader) -> Model:
    """One model, by its name or an alias."""
    stations = stations_of(request)
    shelf = stations.gate.shelf
    card = await stations.call(shelf.find, model)
    return shape(card, is_default=card is shelf.default)


def shape(card: ModelCard, *, is_default: bool) -> Model:
    """A card on the wire."""
    limits = card.limits
    size, frames, fps = limits.size, limits.frames, limits.fps.default
    return Model(
        id=card.name,
        created=card.created,
        owned_by=card.owner,
        is_default=is_default,
        aliases=list(card.aliases),
        limits=LimitsShape(
            size=SizeShape(
                default=str(size.default),
                multiple=size.multiple,
                min_side=size.min_side,
                max_side=size.max_side,
                max_pixels=size.max_pixels,
            ),
            seconds=RangeShape(
                default=frames.seconds(frames.default, fps),
                min=frames.seconds(frames.min, fps),
                max=frames.seconds(frames.max, fps),
            ),
            fps=_range(limits.fps),
            steps=_range(limits.steps),
            guidance=_range(limits.guidance),
            sources=sorted(limits.sources),
        ),
    )


def _range(values: Range[int] | Range[float]) -> RangeShape:
    return RangeShape(default=values.default, min=values.min, max=values.max)
