"""Metrics in CloudWatch's embedded metric format: JSON lines on stdout, for a log agent to send.

Names and labels are as in docs/metrics.md, without `tenant`: every combination of dimensions costs money.
Counters are written as increases since the last line, histograms as the bounds of their new observations.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import TextIO

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric, Sample

from filmgate.telemetry.periodic import Periodic

NAMESPACE = "Filmgate"
# Labels that are not dimensions.
DROPPED = frozenset({"tenant", "le"})
# Limits of the format.
_MAX_VALUES = 100
_MAX_METRICS = 100
_UNITS = {"_seconds": "Seconds", "_bytes": "Bytes", "_total": "Count"}

Labels = tuple[tuple[str, str], ...]
Value = float | list[float]


class EmfWriter:
    """Writes the metrics of a registry. When a metric appears first, its counters are only noted.

    While the database is down, its metrics are missing. What they counted in that time is written later.
    """

    def __init__(
        self, registry: CollectorRegistry, stream: TextIO, clock: Callable[[], float] = time.time
    ) -> None:
        self._registry = registry
        self._stream = stream
        self._clock = clock
        self._known: set[str] = set()
        self._before: dict[tuple[str, Labels], float] = {}

    def write(self) -> None:
        """Write one line per set of labels."""
        now = int(self._clock() * 1000)
        lines: defaultdict[Labels, dict[str, Value]] = defaultdict(dict)
        for family in self._registry.collect():
            if family.name.startswith("filmgate_"):
                for name, labels, value in self._read(family):
                    lines[labels][name] = value
                self._known.add(family.name)
        for labels, values in sorted(lines.items()):
            names = sorted(values)
            for start in range(0, len(names), _MAX_METRICS):
                part = {name: values[name] for name in names[start : start + _MAX_METRICS]}
                self._stream.write(json.dumps(_to_line(now, labels, part)) + "\n")
        self._stream.flush()

    def _read(self, family: Metric) -> Iterator[tuple[str, Labels, Value]]:
        is_known = family.name in self._known
        match family.type:
            case "gauge":
                for labels, value in _sum(family.samples, family.name).items():
                    yield family.name, labels, value
            case "counter":
                name = f"{family.name}_total"
                for labels, value in _sum(family.samples, name).items():
                    increase = self._increase(name, labels, value)
                    if is_known:
                        yield name, labels, increase
            case "histogram":
                for labels, buckets in _buckets(family).items():
                    if (values := self._new_values(family.name, labels, buckets)) and is_known:
                        yield family.name, labels, values

    def _increase(self, name: str, labels: Labels, value: float) -> float:
        """What a counter grew by. It shrinks when what it counted is deleted: then by nothing."""
        before = self._before.get((name, labels), 0.0)
        self._before[name, labels] = value
        return max(value - before, 0.0)

    def _new_values(self, name: str, labels: Labels, buckets: dict[float, float]) -> list[float]:
        """The upper bound of its bucket for every new observation, thinned out to what the format allows.

        Running totals are rounded, so the buckets together have at most `_MAX_VALUES` values.
        """
        grown = {bound: self._increase(f"{name}:{bound}", labels, count) for bound, count in buckets.items()}
        total = sum(grown.values())
        scale = min(1.0, _MAX_VALUES / total) if total else 0.0
        # Observations above the last bound are written as the last bound.
        last = max(bound for bound in buckets if bound != float("inf"))
        values: list[float] = []
        seen = 0.0
        for bound, count in grown.items():
            seen += count
            values += [min(bound, last)] * (round(seen * scale) - len(values))
        return values


def writing_emf(registry: CollectorRegistry, seconds: float) -> AbstractContextManager[object]:
    """Write to stdout at this interval until the block ends; nothing if it is 0."""
    if not seconds:
        return nullcontext()
    return Periodic("embedded metrics", EmfWriter(registry, sys.stdout).write, seconds)


def _to_line(now: int, labels: Labels, values: dict[str, Value]) -> dict[str, object]:
    names = [name for name, _ in labels]
    # Without dimensions too: alarms on the whole installation need no list of models.
    sets = [[], names] if names else [[]]
    described = [{"Name": name, "Unit": _unit(name)} for name in values]
    directive = {"Namespace": NAMESPACE, "Dimensions": sets, "Metrics": described}
    return {"_aws": {"Timestamp": now, "CloudWatchMetrics": [directive]}, **dict(labels), **values}


def _unit(name: str) -> str:
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "None")


def _sum(samples: list[Sample], name: str) -> dict[Labels, float]:
    sums: defaultdict[Labels, float] = defaultdict(float)
    for sample in samples:
        if sample.name == name:
            sums[_labels(sample)] += sample.value
    return sums


def _buckets(family: Metric) -> dict[Labels, dict[float, float]]:
    """The count of each bucket by its upper bound, in ascending order."""
    found: defaultdict[Labels, defaultdict[float, float]] = defaultdict(lambda: defaultdict(float))
    for sample in family.samples:
        if sample.name == f"{family.name}_bucket":
            found[_labels(sample)][float(sample.labels["le"])] += sample.value
    # Samples are cumulative.
    return {
        labels: {
            bound: cumulative[bound] - cumulative.get(below, 0.0)
            for below, bound in pairwise([float("-inf"), *sorted(cumulative)])
        }
        for labels, cumulative in found.items()
    }


def _labels(sample: Sample) -> Labels:
    return tuple(sorted((name, value) for name, value in sample.labels.items() if name not in DROPPED))
