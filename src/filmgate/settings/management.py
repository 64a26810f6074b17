"""The settings of the management port."""

from pydantic import Field

from filmgate.settings.sections import Section


class ManagementSettings(Section):
    """The management port of servers and workers: `/metrics`, `/healthz` and `/readyz` without a key."""

    enabled: bool = Field(default=True, description="false: no management port")
    host: str = Field(
        default="127.0.0.1",
        description="address to listen on; metrics contain tenant names: expose it to your own network only",
    )
    port: int = Field(
        default=9464,
        ge=0,
        le=65535,
        description="first port to try: a process takes the first free one of 16; 0: any free port",
    )
    cloudwatch_seconds: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="interval at which metrics are written to stdout in CloudWatch's embedded metric format; "
        "0: never",
    )
    max_tenants: int = Field(
        default=100,
        ge=0,
        description="tenants up to which latency histograms have a label for the tenant",
    )
