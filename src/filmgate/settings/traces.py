"""Where spans are sent."""

from pydantic import Field

from filmgate.settings.sections import Section


class TraceSettings(Section):
    """OpenTelemetry traces. The other OTEL_* variables, such as OTEL_EXPORTER_OTLP_HEADERS, apply too."""

    endpoint: str = Field(
        default="",
        description="base URL of an OTLP/HTTP receiver, such as http://collector:4318; empty: "
        "OTEL_EXPORTER_OTLP_ENDPOINT, and without that no traces",
    )
    ratio: float = Field(
        default=1.0, ge=0, le=1, description="share of the traces that start here and are exported"
    )
    timeout_seconds: float = Field(
        default=5.0, gt=0, le=60, description="time limit for one export, and for the last at the end"
    )
