"""What the metrics of a running installation say about one model."""

from collections import defaultdict
from dataclasses import dataclass
from math import inf

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from filmgate.errors import RunError


@dataclass(frozen=True, slots=True)
class Measured:
    """One model on our own GPUs. None: no clip has been completed yet."""

    workers: int
    gpu_seconds_per_clip: float | None
    latency_p95_seconds: float | None  # the upper bound of its bucket
    clips: int


def read_measured(text: str, model: str) -> Measured:
    """Read the answer of `/metrics`. Raises RunError while the installation cannot reach its database."""
    families = {family.name: family for family in text_string_to_metric_families(text)}
    if "filmgate_queue_up" not in families or families["filmgate_queue_up"].samples[0].value != 1:
        raise RunError("the installation cannot reach its database; check /readyz")
    labels = {"route": "gpu", "model": model}
    clips = _sum(families, "filmgate_jobs_ended", labels | {"state": "completed"})
    gpu_seconds = _sum(families, "filmgate_gpu_seconds", labels)
    return Measured(
        workers=int(_sum(families, "filmgate_workers", labels)),
        gpu_seconds_per_clip=gpu_seconds / clips if clips else None,
        latency_p95_seconds=_p95(families.get("filmgate_job_seconds"), labels),
        clips=int(clips),
    )


def _sum(families: dict[str, Metric], name: str, labels: dict[str, str]) -> float:
    family = families.get(name)
    samples = family.samples if family else []
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def _p95(family: Metric | None, labels: dict[str, str]) -> float | None:
    counts: dict[float, float] = defaultdict(float)
    for sample in family.samples if family else []:
        if sample.name.endswith("_bucket") and labels.items() <= sample.labels.items():
            counts[float(sample.labels["le"])] += sample.value
    total = counts.get(inf, 0)
    return next((bound for bound in sorted(counts) if counts[bound] >= 0.95 * total), None) if total else None
