"""What managed APIs would charge for the same clip, and the volume at which an own fleet is cheaper."""

from collections.abc import Sequence
from dataclasses import dataclass

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.managed import VideoApi
from filmgate.planner.fleet.money import break_even
from filmgate.planner.video.candidates import Candidate, VideoAsk, daily_cost


@dataclass(frozen=True, slots=True)
class Offer:
    """One managed API for this clip; `is_available`: it lives, makes the size and is not known to be late."""

    id: str
    name: str
    state: str
    is_available: bool
    usd_per_clip: float
    usd_per_second_of_video: float
    break_even_clips_per_day: float | None
    typical_seconds: float | None
    regions: tuple[str, ...]
    note: str


def managed_offers(ask: VideoAsk, catalog: Catalog, best: Candidate) -> list[Offer]:
    """Every API of the catalog, the dead ones too: they are what old advice still compares with."""
    found = []
    for api in catalog.video_apis.values():
        usd = api.usd_per_clip(ask.clip.seconds)
        crossing = break_even(lambda clips: daily_cost(ask, best, clips), usd) if best.machine.price else None
        found.append(
            Offer(
                id=api.id,
                name=api.name,
                state=api.state,
                is_available=api.is_available and _suits(ask, api),
                usd_per_clip=usd,
                usd_per_second_of_video=api.usd_per_second,
                break_even_clips_per_day=crossing,
                typical_seconds=api.typical_seconds,
                regions=api.regions,
                note=api.note or "",
            )
        )
    return found


def _suits(ask: VideoAsk, api: VideoApi) -> bool:
    is_late = ask.slo_seconds is not None and (api.typical_seconds or 0.0) > ask.slo_seconds
    return ask.clip.height <= api.max_height and not is_late


def cheapest(offers: Sequence[Offer]) -> Offer | None:
    """The cheapest API that can be had."""
    return min((o for o in offers if o.is_available), key=lambda o: o.usd_per_clip, default=None)
