"""Reads GPU metrics from the HTTP API of Prometheus: those of our workers, or of the DCGM exporter."""

from collections.abc import Mapping
from math import ceil, isfinite

import httpx

from filmgate.catalog.gpus import MIB
from filmgate.errors import RunError, UsageError
from filmgate.planner.rightsize import GpuMetrics

OPTION = "--prometheus"
STEP_SECONDS = 300
MAX_POINTS = 11_000  # of one series in one answer of Prometheus
TIMEOUT_SECONDS = 30.0
# For each figure, the metrics that may hold it and the factor to a share or to bytes, our own first.
METRICS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "gpu": (("filmgate_gpu_utilization_ratio", 1.0), ("DCGM_FI_DEV_GPU_UTIL", 0.01)),
    "memory": (("filmgate_gpu_memory_used_bytes", 1.0), ("DCGM_FI_DEV_FB_USED", float(MIB))),
    "sm": (("DCGM_FI_PROF_SM_ACTIVE", 1.0),),
    "dram": (("DCGM_FI_PROF_DRAM_ACTIVE", 1.0),),
}


def read_prometheus(url: str, selector: str, end: float, days: int = 7) -> GpuMetrics:
    """Samples of every matching GPU, at least five minutes apart, up to `end` in Unix seconds.

    Raises UsageError if there are none, and RunError if the server does not answer.
    """
    with httpx.Client(base_url=url.rstrip("/"), timeout=TIMEOUT_SECONDS) as client:
        found = {name: _first(client, names, selector, end, days) for name, names in METRICS.items()}
    if not found["gpu"]:
        names = " or ".join(name for name, _ in METRICS["gpu"])
        raise UsageError(f"{url} has no samples of {names}{selector}", option=OPTION)
    shares = {name: tuple(min(1.0, value) for value in found[name]) for name in ("gpu", "sm", "dram")}
    return GpuMetrics(shares["gpu"], tuple(found["memory"]), shares["sm"], shares["dram"])


def _first(
    client: httpx.Client, names: tuple[tuple[str, float], ...], selector: str, end: float, days: int
) -> list[float]:
    """The samples of the first metric that has some."""
    for name, factor in names:
        samples = _range(client, f"{name}{selector}", end, days)
        if samples:
            return [value * factor for value in samples]
    return []


def _range(client: httpx.Client, query: str, end: float, days: int) -> list[float]:
    seconds = days * 86_400
    span: dict[str, str | float] = {
        "query": query,
        "start": end - seconds,
        "end": end,
        "step": max(STEP_SECONDS, ceil(seconds / MAX_POINTS)),
    }
    try:
        answer = client.get("/api/v1/query_range", params=span)
        body = answer.json()
    except (httpx.HTTPError, ValueError) as exc:
        raise RunError(f"{client.base_url} does not answer as Prometheus: {type(exc).__name__}") from exc
    if not isinstance(body, dict) or body.get("status") != "success":
        reason = body.get("error", answer.status_code) if isinstance(body, dict) else answer.status_code
        raise UsageError(f"Prometheus rejected {query}: {reason}", option=OPTION)
    values = [float(value) for series in body["data"]["result"] for _, value in series["values"]]
    return [value for value in values if isfinite(value)]
