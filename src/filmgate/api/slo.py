"""GET /v1/slo: SLO attainment, for operators."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from filmgate.api.auth import Operator
from filmgate.api.openapi import PROBLEMS
from filmgate.api.services import services_of

router = APIRouter(tags=["operations"], responses=PROBLEMS)


class ClassAttainment(BaseModel):
    """One class of clips. `target` is the target of its jobs, or the mean if their targets differ.

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


class SloReport(BaseModel):
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
) -> SloReport:
    """Attainment, error budget and burn rates by class of clip. Needs the `admin` scope."""
    report = services_of(request).slo

    def read() -> SloReport:
        return SloReport.model_validate(report.to_shape(report.read(is_by_tenant=is_by_tenant)))

    return await services_of(request).call(read)
