"""The parts of a plan (`filmgate plan video --json`) that a deployment depends on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filmgate.errors import UsageError
from filmgate.planner.fleet.answer import ChartWorkers, Deployment
from filmgate.planner.fleet.pattern import Pattern

OPTION = "--plan"
_SECTIONS = ("fleet", "cost", "time")
_WRITE_IT = "write it with `filmgate plan video ... --json > plan.json`"


@dataclass(frozen=True, slots=True)
class Plan:
    """A fleet of workers for one model. The price, and the GPU's name in Karpenter, may not be known.

    If `is_managed`, the plan recommends a managed provider, and this is the fleet it was compared with.
    """

    karpenter_gpu_name: str | None
    replicas: int
    usd_per_hour: float | None
    seconds_per_clip: float
    seconds_per_clip_high: float
    latency_p95_seconds: float
    deployment: Deployment
    is_managed: bool = False


def read_plan(path: Path) -> Plan:
    """Raises UsageError for a file that is not a plan, and for a plan that Filmgate cannot run."""
    document = _read(path)
    fleet, cost, time = (document.get(name) for name in _SECTIONS)
    if fleet and "engine_arguments" in fleet:
        raise UsageError(
            f"{path} is a plan for a language model, which Filmgate does not run; {_WRITE_IT}", option=OPTION
        )
    if not fleet or not cost or not time or "replicas" not in fleet:
        raise UsageError(f"the plan has no fleet: {document['verdict']}", option=OPTION)
    if document.get("is_possible") is False:
        raise UsageError(f"the plan is not possible: {document['verdict']}", option=OPTION)
    try:
        plan = _parse(fleet, cost, time)
    except (KeyError, TypeError) as exc:
        raise UsageError(
            f"{path} was written by another version of Filmgate ({exc}); plan again", option=OPTION
        ) from exc
    if fleet["gpus_per_replica"] != 1:
        count = fleet["gpus_per_replica"]
        raise UsageError(
            f"the plan uses {count} GPUs for one clip, a worker uses one; plan with a longer --slo-seconds",
            option=OPTION,
        )
    return plan


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}; {_WRITE_IT}", option=OPTION) from exc
    except ValueError as exc:
        raise UsageError(f"{path} is not JSON; {_WRITE_IT}", option=OPTION) from exc
    if (
        not isinstance(document, dict)
        or "verdict" not in document
        or not all(isinstance(document.get(name) or {}, dict) for name in _SECTIONS)
    ):
        raise UsageError(f"{path} is not a plan; {_WRITE_IT}", option=OPTION)
    return document


def _parse(fleet: dict[str, Any], cost: dict[str, Any], time: dict[str, Any]) -> Plan:
    chart = ChartWorkers(**fleet["deployment"]["chart"])
    return Plan(
        karpenter_gpu_name=fleet["software"]["karpenter_gpu_name"],
        replicas=fleet["replicas"],
        usd_per_hour=cost["usd_per_hour"],
        seconds_per_clip=time["seconds_per_clip"],
        seconds_per_clip_high=time["high"],
        latency_p95_seconds=fleet["latency_p95"] or 0.0,
        deployment=Deployment(**fleet["deployment"] | {"chart": chart}),
        is_managed=fleet["pattern"] == Pattern.MANAGED,
    )
