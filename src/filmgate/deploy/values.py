"""Values of the Helm chart for the fleet of a plan."""

import math
import re

from filmgate.catalog.instances import Instance
from filmgate.deploy.plan import ChartValues, Plan
from filmgate.models.names import NamedModel

Values = dict[str, object]

# Shares of a node that its workers request; the rest is for the kubelet and DaemonSets.
_CPU_SHARE, _MEMORY_REQUEST_SHARE, _MEMORY_LIMIT_SHARE = 0.75, 0.7, 0.85
_SPOT_DRAIN_SECONDS = 60  # of the two minutes of a spot notice
_MAX_NAME = 24


def build_values(plan: Plan, machine: Instance, model: NamedModel) -> Values:
    """Values for `helm install --values`. JSON is YAML, so helm reads them as they are printed."""
    family, name, chart = machine.family, _resource_name(model.name), plan.chart
    worker = _worker(plan, machine, model)
    steady = worker | {
        "nodePool": family,
        "minReplicas": chart.min_replicas,
        "maxReplicas": chart.max_replicas,
        "scaling": _scaling(chart),
    }
    workers: Values = {name: steady}
    pools: Values = {family: _pool(plan, machine, "on-demand", chart.max_replicas)}
    if chart.spot_replicas:
        workers[f"{name}-spot"] = worker | {
            "nodePool": f"{family}-spot",
            "minReplicas": 0,
            "maxReplicas": chart.spot_replicas,
            "drainSeconds": _SPOT_DRAIN_SECONDS,
        }
        pools[f"{family}-spot"] = _pool(plan, machine, "spot", chart.spot_replicas)
    return {
        "settings": _settings(plan, machine, model),
        "workers": workers,
        "karpenter": {"enabled": True, "nodePools": pools},
        "keda": {"enabled": True},
    }


def _settings(plan: Plan, machine: Instance, model: NamedModel) -> Values:
    settings: Values = {"api": {"usd_per_gpu_hour": round(plan.usd_per_hour / machine.gpus, 4)}}
    admission: Values = {"slo_seconds": plan.slo_seconds} if plan.slo_seconds else {}
    if plan.chart.min_replicas == 0:
        admission["scale_from_zero"] = model.name  # accept its jobs while no worker runs
    return settings | ({"admission": admission} if admission else {})


def _scaling(chart: ChartValues) -> Values:
    found: Values = {"backlogSecondsPerWorker": chart.backlog_seconds_per_worker}
    if chart.replicas_while_active:
        found["replicasWhileActive"] = chart.replicas_while_active
    if chart.scheduled_replicas:
        hours = {"start": f"0 {chart.start_hour} * * *", "end": f"0 {chart.end_hour} * * *"}
        found["schedule"] = [hours | {"timezone": "Etc/UTC", "replicas": chart.scheduled_replicas}]
    return found


def _worker(plan: Plan, machine: Instance, model: NamedModel) -> Values:
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
        "drainSeconds": plan.chart.drain_seconds,
        "resources": resources,
        "scaling": {"backlogSecondsPerWorker": plan.chart.backlog_seconds_per_worker},
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
