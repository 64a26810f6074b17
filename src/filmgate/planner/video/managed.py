"""Prices of managed APIs for the same clip, and the volume at which your own fleet is cheaper."""

from collections.abc import Sequence

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.managed import VideoApi
from filmgate.planner.fleet.answer import ClipQuote
from filmgate.planner.fleet.money import break_even
from filmgate.planner.machines import jurisdiction_of
from filmgate.planner.video.candidates import Candidate, daily_cost
from filmgate.planner.video.question import VideoQuestion


def quote_managed(question: VideoQuestion, catalog: Catalog, best: Candidate | None) -> list[ClipQuote]:
    """Every API in the catalog. Retired ones are included because older advice compares with them."""
    return [_quote(question, catalog, api, best) for api in catalog.video_apis.values()]


def _quote(question: VideoQuestion, catalog: Catalog, api: VideoApi, best: Candidate | None) -> ClipQuote:
    usd = api.usd_per_clip(question.clip.seconds)
    crossing = None
    if best and best.machine.price:
        crossing = break_even(lambda clips: daily_cost(question, best, clips), usd)
    obstacle = _obstacle(question, catalog, api)
    return ClipQuote(
        id=api.id,
        name=api.name,
        state=api.state,
        is_available=api.is_available and obstacle is None,
        usd_per_clip=usd,
        usd_per_second_of_video=api.usd_per_second,
        break_even_clips_per_day=crossing,
        typical_seconds=api.typical_seconds,
        regions=api.regions,
        note="; ".join(text for text in (obstacle, api.note) if text),
    )


def _obstacle(question: VideoQuestion, catalog: Catalog, api: VideoApi) -> str | None:
    """Why an active API cannot serve the question, or None."""
    allowed = (
        jurisdiction_of(question.residency, catalog)
        if question.residency
        else catalog.region(question.region).jurisdiction
    )
    places = {catalog.regions[name].jurisdiction for name in api.regions if name in catalog.regions}
    slo, height = question.slo_seconds, question.clip.size.height
    if question.gpu is None and allowed not in places:
        return f"offered in {', '.join(sorted(places)) or 'no known region'}, not in {allowed}"
    if height > api.max_height:
        return f"renders at most {api.max_height} lines, the clip has {height}"
    if slo is not None and (api.typical_seconds or 0.0) > slo:
        return f"takes {api.typical_seconds:g} s, the SLO is {slo:g} s"
    return None


def cheapest(quotes: Sequence[ClipQuote]) -> ClipQuote | None:
    """The cheapest available quote."""
    return min((q for q in quotes if q.is_available), key=lambda q: q.usd_per_clip, default=None)
