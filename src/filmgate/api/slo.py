"""GET /v1/slo: how the objectives are met, for operators."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from filmgate.api.auth import Operator
from filmgate.api.openapi import PROBLEMS
from filmgate.api.services import services_of

router = APIRouter(tags=["operators"], responses=PROBLEMS)


class ClassAttainment(BaseModel):
    """One class of clips. `target` is that of its jobs, the mean if they have different ones.

    `budget_left` is below 0 when more jobs were late than allowed.
    """

    model_config = ConfigDict(populate_by_name=True)

    tenant: str | None
    name: str = Field(alias="class")
    objective_seconds: float | None
    target: float
    jobs: int
    late: int
    attained: float | None
    budget_left: float | None
    burn_rates: dict[str, float | None]


class SloState(BaseModel):
    """The objectives over the window of the error budget."""

    object: Literal["slo"] = "slo"
    target: float
    window_seconds: float
    data: list[ClassAttainment]


@router.get("/v1/slo")
async def retrieve_slo(
    request: Request,
    _operator: Operator,
    is_by_tenant: Annotated[
        bool, Query(alias="by_tenant", description="One row per tenant and class.")
    ] = False,
) -> SloState:
    """Attainment, error budget and burn rates by class of clip. Needs the scope `admin`."""
    report = services_of(request).slo

    def read() -> SloState:
        return SloState.model_validate(report.to_shape(report.read(is_by_tenant=is_by_tenant)))

    return await services_of(request).call(read)
