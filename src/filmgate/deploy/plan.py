"""The parts of a plan (`filmgate plan video --json`) that a deployment depends on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filmgate.errors import UsageError

OPTION = "--plan"
_WRITE_IT = "write it with `filmgate plan video ... --json > plan.json`"


@dataclass(frozen=True, slots=True)
class ChartValues:
    """`fleet.deployment.chart` of a plan: how the chart scales its workers."""

    min_replicas: int
    max_replicas: int
    spot_replicas: int = 0
    replicas_while_active: int = 0
    scheduled_replicas: int = 0
    start_hour: int = 0
    end_hour: int = 0
    backlog_seconds_per_worker: int = 60
    drain_seconds: int = 120


@dataclass(frozen=True, slots=True)
class Plan:
    """A fleet of workers for one model."""

    machine: str
    karpenter_gpu_name: str
    replicas: int
    warm_replicas: int
    usd_per_hour: float
    seconds_per_clip: float
    seconds_per_clip_high: float
    latency_p95_seconds: float
    chart: ChartValues
    pipeline: Mapping[str, str] = field(default_factory=dict)  # settings of the section `pipeline`
    slo_seconds: float | None = None


def read_plan(path: Path) -> Plan:
    """Raises UsageError for a file that is no plan, and for a plan that Filmgate cannot run."""
    try:
        document = json.loads(path.read_text())
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}; {_WRITE_IT}", option=OPTION) from exc
    except ValueError as exc:
        raise UsageError(f"{path} is not JSON; {_WRITE_IT}", option=OPTION) from exc
    if not isinstance(document, dict) or "verdict" not in document:
        raise UsageError(f"{path} is not a plan; {_WRITE_IT}", option=OPTION)
    fleet, cost, time = (document.get(name) for name in ("fleet", "cost", "time"))
    if not fleet or not cost or not time or "replicas" not in fleet:
        raise UsageError(f"the plan has no fleet: {document['verdict']}", option=OPTION)
    try:
        plan = _parse(fleet, cost, time)
    except (KeyError, TypeError) as exc:
        raise UsageError(f"{path} has no {exc}; plan again with this version", option=OPTION) from exc
    if fleet["gpus_per_replica"] != 1:
        count = fleet["gpus_per_replica"]
        raise UsageError(
            f"the plan uses {count} GPUs for one clip, a worker uses one; plan with a longer --slo-seconds",
            option=OPTION,
        )
    return plan


def _parse(fleet: dict[str, Any], cost: dict[str, Any], time: dict[str, Any]) -> Plan:
    return Plan(
        machine=fleet["machine"],
        karpenter_gpu_name=fleet["software"]["karpenter_gpu_name"],
        replicas=fleet["replicas"],
        warm_replicas=fleet["warm_replicas"],
        usd_per_hour=cost["usd_per_hour"],
        seconds_per_clip=time["seconds_per_clip"],
        seconds_per_clip_high=time["high"],
        latency_p95_seconds=fleet["latency_p95"] or 0.0,
        chart=ChartValues(**fleet["deployment"]["chart"]),
        pipeline={name: fleet["deployment"][name] for name in ("offload", "compile", "dtype")},
        slo_seconds=fleet["deployment"]["slo_seconds"],
    )
