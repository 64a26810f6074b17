"""Values of the Helm chart for the fleet of a plan."""

import math
import re
from dataclasses import dataclass

from filmgate.catalog.instances import Instance
from filmgate.deploy.plan import Plan

Values = dict[str, object]

# Shares of a node that its workers request; the rest is for the kubelet and DaemonSets.
_CPU_SHARE, _MEMORY_REQUEST_SHARE, _MEMORY_LIMIT_SHARE = 0.75, 0.7, 0.85
# A drain finishes the running clip where that takes minutes, not hours.
_MAX_DRAIN_SECONDS = 900
_MAX_NAME = 24


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The model of the workers: its name in the API, and where its weights are."""

    name: str
    location: str


def build_values(plan: Plan, machine: Instance, model: ModelChoice) -> Values:
    """Values for `helm install --values`. JSON is YAML, so helm reads them as they are printed."""
    family, name = machine.family, _resource_name(model.name)
    spot_workers = min(plan.spot_instances * machine.gpus, plan.replicas - 1) if plan.spot_instances else 0
    worker = _worker(plan, machine, model)
    steady = worker | {
        "nodePool": family,
        "minReplicas": max(1, min(plan.warm_replicas, plan.replicas - spot_workers)),
        "maxReplicas": max(1, plan.replicas_p99 - spot_workers),
    }
    workers: Values = {name: steady}
    pools: Values = {family: _pool(plan, machine, "on-demand", max(1, plan.replicas_p99 - spot_workers))}
    if spot_workers:
        drain = {"drainSeconds": 60}  # of the two minutes of a spot notice
        workers[f"{name}-spot"] = (
            worker | drain | {"nodePool": f"{family}-spot", "minReplicas": 0, "maxReplicas": spot_workers}
        )
        pools[f"{family}-spot"] = _pool(plan, machine, "spot", spot_workers)
    settings: dict[str, Values] = {"api": {"usd_per_gpu_hour": round(plan.usd_per_hour / machine.gpus, 4)}}
    if plan.slo_seconds:
        settings["admission"] = {"slo_seconds": plan.slo_seconds}
    return {
        "settings": settings,
        "workers": workers,
        "karpenter": {"enabled": True, "nodePools": pools},
        "keda": {"enabled": True},
    }


def _worker(plan: Plan, machine: Instance, model: ModelChoice) -> Values:
    gib = machine.ram_gib / machine.gpus
    cpu = max(1, math.floor(machine.vcpu / machine.gpus * _CPU_SHARE))
    memory = {"requests": _MEMORY_REQUEST_SHARE, "limits": _MEMORY_LIMIT_SHARE}
    resources = {kind: {"memory": f"{math.floor(gib * share)}Gi"} for kind, share in memory.items()}
    resources["requests"]["cpu"] = str(cpu)
    return {
        "model": model.location,
        "modelName": model.name,
        "gpus": 1,
        "settings": {"pipeline": dict(plan.pipeline)} if plan.pipeline else {},
        "drainSeconds": min(_MAX_DRAIN_SECONDS, math.ceil(plan.seconds_per_clip_high)),
        "resources": resources,
        # A backlog that one worker clears within the planned waiting time needs no second worker.
        "scaling": {"backlogSecondsPerWorker": math.ceil(max(plan.seconds_per_clip, plan.wait_p95_seconds))},
    }


def _pool(plan: Plan, machine: Instance, capacity: str, gpus: int) -> Values:
    whole_nodes = math.ceil(gpus / machine.gpus) * machine.gpus
    return {
        "gpu": plan.karpenter_gpu_name,
        "gpusPerNode": [str(machine.gpus)],
        "capacity": [capacity],
        "maxGpus": whole_nodes,
        "families": [machine.family],
    }


def _resource_name(model: str) -> str:
    """A model's name as a part of Kubernetes names."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:_MAX_NAME].rstrip("-")
