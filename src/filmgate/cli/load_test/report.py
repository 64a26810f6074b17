"""The figures of a load test."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from filmgate.cli.load_test.mix import ClipKind, Plan
from filmgate.cli.load_test.requests import Sent
from filmgate.planner.percentiles import percentile


@dataclass(frozen=True, slots=True)
class Measured:
    """What a load test saw: the requests, when the service ended each job, and how busy the GPU was."""

    plan: Plan
    sent: Sequence[Sent]
    finished_at: Mapping[str, float]
    utilisation: float | None


def figures(
    measured: Measured, alone: Mapping[ClipKind, float], usd_per_hour: float | None
) -> dict[str, object]:
    """Clips per hour, seconds between clips, latency and cost.

    Seconds between clips are compared with the device's own seconds for the same clips, in the same run. This
    says something only where all requests arrive at once: otherwise the device also waits for requests.
    """
    done = sorted(
        (each for each in measured.sent if each.error is None), key=lambda each: _end(measured, each)
    )
    failed = [each for each in measured.sent if each.error is not None]
    latencies = [each.seconds for each in done if each.seconds is not None]
    gaps = [_end(measured, after) - _end(measured, before) for before, after in pairwise(done)]
    between = fmean(gaps) if gaps and measured.plan.is_saturated else None
    needed = fmean(alone[each.kind] for each in done[1:]) if between and alone else None
    per_hour = _clips_per_hour(measured, done, between)
    return {
        "clips": len(done),
        "failed": len(failed),
        "errors": dict(Counter(each.error for each in failed)),
        "clips_per_hour": _rounded(per_hour),
        "seconds_between_clips": _rounded(between),
        "denoise_and_decode_alone": _rounded(needed),
        "between_to_alone": _rounded(between / needed if between and needed else None),
        "gpu_utilisation": _rounded(measured.utilisation),
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


def _clips_per_hour(measured: Measured, done: Sequence[Sent], between: float | None) -> float | None:
    if between:
        return 3600 / between
    if not done:
        return None
    started = min(each.sent_at for each in measured.sent)
    return 3600 * len(done) / (_end(measured, done[-1]) - started)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def table(result: Mapping[str, object]) -> str:
    """The result as lines of text."""
    lines = [f"{result['device'] or 'a server elsewhere'}: {result['mix']}"]
    lines += [f"{name.replace('_', ' '):<28}{_text(result[name])}" for name in _LINES]
    planned = result["planned"]
    assert isinstance(planned, dict)
    lines.append(f"{'the planner predicts':<28}{_text(planned)}")
    return "\n".join(lines)


_LINES = (
    "clips",
    "failed",
    "clips_per_hour",
    "seconds_between_clips",
    "denoise_and_decode_alone",
    "between_to_alone",
    "gpu_utilisation",
    "latency_seconds",
    "usd_per_1000_clips",
)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_text(each)}" for name, each in value.items()) or "-"
    return "-" if value is None else str(value)
