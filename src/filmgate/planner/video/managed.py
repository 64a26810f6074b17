"""Prices of managed APIs for the same clip, and the volume at which your own fleet is cheaper."""

from collections.abc import Sequence

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.managed import VideoApi
from filmgate.planner.fleet.answer import ClipQuote
from filmgate.planner.fleet.money import break_even
from filmgate.planner.video.candidates import Candidate, VideoQuestion, daily_cost


def quote_managed(question: VideoQuestion, catalog: Catalog, best: Candidate) -> list[ClipQuote]:
    """Every API in the catalog. Retired ones are included because older advice compares with them."""
    return [_quote(question, api, best) for api in catalog.video_apis.values()]


def _quote(question: VideoQuestion, api: VideoApi, best: Candidate) -> ClipQuote:
    usd = api.usd_per_clip(question.clip.seconds)
    crossing = (
        break_even(lambda clips: daily_cost(question, best, clips), usd) if best.machine.price else None
    )
    return ClipQuote(
        id=api.id,
        name=api.name,
        state=api.state,
        is_available=api.is_available and _suits(question, api),
        usd_per_clip=usd,
        usd_per_second_of_video=api.usd_per_second,
        break_even_clips_per_day=crossing,
        typical_seconds=api.typical_seconds,
        regions=api.regions,
        note=api.note or "",
    )


def _suits(question: VideoQuestion, api: VideoApi) -> bool:
    slo = question.slo_seconds
    is_late = slo is not None and (api.typical_seconds or 0.0) > slo
    return question.clip.size.height <= api.max_height and not is_late


def cheapest(quotes: Sequence[ClipQuote]) -> ClipQuote | None:
    """The cheapest available quote."""
    return min((q for q in quotes if q.is_available), key=lambda q: q.usd_per_clip, default=None)
