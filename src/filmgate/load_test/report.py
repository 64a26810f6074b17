"""The figures of a load test."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from filmgate.load_test.mix import ClipKind, Plan
from filmgate.load_test.requests import Sent
from filmgate.planner.percentiles import percentile


@dataclass(frozen=True, slots=True)
class Measured:
    """What a load test saw: the requests, when the service ended each job, and how busy the GPU was."""

    plan: Plan
    sent: Sequence[Sent]
    finished_at: Mapping[str, float]
    utilization: float | None


def figures(
    measured: Measured, alone: Mapping[ClipKind, float], usd_per_hour: float | None
) -> dict[str, object]:
    """Clips per hour, seconds between clips, latency and cost.

    Clips per hour are the clips after the first one, from its end to the end of the last one. With fewer than
    two clips there is no such figure.

    Seconds between clips are compared with the device's own seconds for the same clips, in the same run. This
    says something only where all requests arrive at once: otherwise the device also waits for requests.
    """
    done = sorted(
        (each for each in measured.sent if each.error is None), key=lambda each: _end(measured, each)
    )
    failed = [each for each in measured.sent if each.error is not None]
    latencies = [each.seconds for each in done if each.seconds is not None]
    gaps = [_end(measured, after) - _end(measured, before) for before, after in pairwise(done)]
    mean_gap = fmean(gaps) if gaps else None
    between = mean_gap if measured.plan.is_saturated else None
    needed = fmean(alone[each.kind] for each in done[1:]) if between and alone else None
    per_hour = 3600 / mean_gap if mean_gap else None
    return {
        "clips": len(done),
        "failed": len(failed),
        "errors": dict(Counter(each.error for each in failed)),
        "clips_per_hour": _rounded(per_hour),
        "seconds_between_clips": _rounded(between),
        "denoise_and_decode_alone": _rounded(needed),
        "between_to_alone": _rounded(between / needed if between and needed else None),
        "gpu_utilization": _rounded(measured.utilization),
        "latency_seconds": {
            name: _rounded(percentile(latencies, share)) if latencies else None
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        },
        "usd_per_1000_clips": _rounded(1000 * usd_per_hour / per_hour if usd_per_hour and per_hour else None),
    }


def _end(measured: Measured, sent: Sent) -> float:
    """When the service completed the job; as the client saw it where the service is elsewhere."""
    assert sent.linked_at is not None
    return measured.finished_at.get(sent.video_id or "", sent.linked_at)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def table(result: Mapping[str, object]) -> str:
    """The measured figures beside the planned ones, as lines of text."""
    planned = result["planned"]
    assert isinstance(planned, Mapping)
    lines = [f"{result['device'] or 'a server elsewhere'}: {result['mix']}"]
    lines.append(f"{'':<28}{'measured':>12}{'planned':>12}")
    for name in _LINES:
        rows = _rows(name, result[name], planned.get(name))
        lines += [f"{label:<28}{_text(value):>12}{_text(plan):>12}".rstrip() for label, value, plan in rows]
    lines += [
        f"failed: {reason} ({count} times)" for reason, count in dict(_mapping(result["errors"])).items()
    ]
    if "reason" in planned:
        lines.append(f"no plan: {planned['reason']}")
    return "\n".join(lines)


_LINES = (
    "clips",
    "failed",
    "clips_per_hour",
    "seconds_between_clips",
    "denoise_and_decode_alone",
    "between_to_alone",
    "gpu_utilization",
    "latency_seconds",
    "usd_per_1000_clips",
)


def _rows(name: str, value: object, plan: object) -> list[tuple[str, object, object]]:
    """The lines of a figure: one, or one per part."""
    label = name.replace("_", " ")
    if not isinstance(value, Mapping):
        return [(label, value, plan)]
    return [(f"{label}, {part}", each, _mapping(plan).get(part)) for part, each in value.items()]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return "-" if value is None else str(value)
