"""Compares a running installation with its plan."""

from collections.abc import Iterator
from math import isfinite

from filmgate.deploy.measurements import Measured
from filmgate.deploy.plan import Plan
from filmgate.telemetry.findings import Finding, Verdict

# Fewer clips say little about a 95th percentile.
_MIN_CLIPS = 20


def compare(plan: Plan, measured: Measured) -> Iterator[Finding]:
    """Findings about workers, seconds per clip and latency."""
    yield _workers(plan, measured)
    if measured.gpu_seconds_per_clip is None or measured.latency_p95_seconds is None:
        yield Finding("clips", Verdict.WARN, "no clip is completed yet", "render clips, then check again")
        return
    yield _speed(plan, measured.gpu_seconds_per_clip)
    if measured.clips < _MIN_CLIPS:
        message = f"{measured.clips} clips are too few for a percentile"
        yield Finding("latency", Verdict.WARN, message, f"check again after {_MIN_CLIPS} clips")
    else:
        yield _latency(plan, measured.latency_p95_seconds)


def _workers(plan: Plan, measured: Measured) -> Finding:
    chart, pools, live = plan.deployment.chart, plan.deployment.pools, measured.workers
    on_demand, spot = chart.min_replicas * pools, chart.min_spot_replicas * pools
    also = f" on demand and {spot} on spot" if spot else ""
    message = f"{live} live, the plan keeps {on_demand} warm{also} and needs {plan.replicas}"
    if live < on_demand:
        remedy = "look for pending pods, or raise minReplicas of the worker"
        return Finding("workers", Verdict.FAIL, message, remedy)
    if live < on_demand + spot:
        return Finding("workers", Verdict.WARN, message, "look for spot nodes that were reclaimed")
    if live > (chart.max_replicas + chart.spot_replicas) * pools:
        return Finding(
            "workers", Verdict.WARN, message, "lower maxReplicas, or plan again with the real volume"
        )
    return Finding("workers", Verdict.OK, message)


def _speed(plan: Plan, seconds: float) -> Finding:
    message = f"{seconds:.1f} GPU-seconds per clip, the plan has {plan.seconds_per_clip:.1f}"
    if seconds > plan.seconds_per_clip_high:
        return Finding("speed", Verdict.FAIL, message, "plan again: the fleet is too small for these clips")
    return Finding("speed", Verdict.OK, message)


def _latency(plan: Plan, seconds: float) -> Finding:
    bound = f"at most {seconds:g} s" if isfinite(seconds) else "above the largest bucket of the histogram"
    message = f"p95 is {bound}, the plan has {plan.latency_p95_seconds:.0f} s"
    if seconds > 2 * plan.latency_p95_seconds:
        return Finding("latency", Verdict.FAIL, message, "look at the backlog and at maxReplicas")
    if seconds > plan.latency_p95_seconds:
        return Finding(
            "latency", Verdict.WARN, message, "p95 may be lower than its bucket's bound; check again later"
        )
    return Finding("latency", Verdict.OK, message)
