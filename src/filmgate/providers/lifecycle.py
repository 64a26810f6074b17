"""Does a Bedrock model still live? Its own word where we may ask for it, else the catalog's."""

from dataclasses import dataclass
from datetime import UTC, date, datetime

from filmgate.catalog.managed import VideoApi
from filmgate.errors import ProviderUnusable


@dataclass(frozen=True, slots=True)
class LifeCycle:
    """A model's state and the day after which calls fail; `source` says who told."""

    state: str
    end_of_life: date | None
    source: str

    def check(self, model_id: str, today: date) -> None:
        """Raises ProviderUnusable with the date, once it has come."""
        if self.end_of_life is not None and self.end_of_life <= today:
            raise ProviderUnusable(
                f"{model_id} reached its end of life on {self.end_of_life} ({self.source}); "
                "set fallback.model to a model that lives"
            )
        if self.state == "retired":
            raise ProviderUnusable(f"{model_id} is retired ({self.source}); set fallback.model to another")


def from_catalog(api: VideoApi, region: str) -> LifeCycle:
    """What the shipped catalog knows. Raises ProviderUnusable for a region the model is not in."""
    if region not in api.regions:
        raise ProviderUnusable(
            f"{api.name} is offered in {', '.join(api.regions)}, not in {region} "
            f"(catalog of {api.as_of}); set fallback.region"
        )
    end = date.fromisoformat(api.end_of_life) if api.end_of_life else None
    return LifeCycle(api.state, end, f"catalog of {api.as_of}")


def from_answer(status: str, end_of_life: datetime | None) -> LifeCycle:
    """What GetFoundationModel said: it wins over a catalog that may be older."""
    end = end_of_life.astimezone(UTC).date() if end_of_life is not None else None
    return LifeCycle(status.lower(), end, "GetFoundationModel")
