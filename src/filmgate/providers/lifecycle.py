"""Whether a Bedrock model is retired: from GetFoundationModel, or from the catalog."""

from dataclasses import dataclass
from datetime import UTC, date, datetime

from filmgate.catalog.managed import VideoApi
from filmgate.errors import ProviderUnusable


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
