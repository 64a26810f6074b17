"""Settings of the service level objectives."""

from pydantic import Field

from filmgate.jobs import DEFAULT_SLO_TARGET
from filmgate.settings.sections import Section


class SloSettings(Section):
    """Service level objectives: how fast a clip must be ready, and how many may be late.

    The objective of a clip without a class is `admission.slo_seconds`. OBJECTIVE is SECONDS, SECONDS@TARGET
    or @TARGET, such as 30@0.99. What it leaves out is that of the class, or the default.
    """

    target: float = Field(
        default=DEFAULT_SLO_TARGET,
        gt=0,
        lt=1,
        description="share of jobs that must meet their objective; 0.95 is 95 %",
    )
    classes: str = Field(
        default="",
        description="comma-separated NAME=WIDTHxHEIGHT/SECONDS:OBJECTIVE, for example "
        "short=1280x720/5:30@0.99; a clip belongs to the first class it fits into",
    )
    tenants: str = Field(
        default="",
        description="comma-separated TENANT=OBJECTIVE or TENANT/CLASS=OBJECTIVE; `filmgate tenant set` takes "
        "precedence",
    )
    window_seconds: float = Field(
        default=28 * 86400.0, ge=3600, le=90 * 86400.0, description="the window of the error budget"
    )
    runbooks: str = Field(
        default="",
        description="base URL of the published runbooks, for the annotation runbook_url of alerts; empty: "
        "their path in the source folder",
    )
