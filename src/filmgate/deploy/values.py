"""Values of the Helm chart for the fleet of a plan."""

import math
import re
from collections.abc import Sequence

from filmgate.catalog.instances import Instance
from filmgate.deploy.plan import Plan
from filmgate.errors import UsageError
from filmgate.models.names import NamedModel
from filmgate.models.quality import FULL
from filmgate.planner.fleet.answer import ChartWorkers
from filmgate.planner.fleet.tenancy import Tenancy

Values = dict[str, object]

# Shares of a node that its workers request; the rest is for the kubelet and DaemonSets.
_CPU_SHARE, _MEMORY_REQUEST_SHARE, _MEMORY_LIMIT_SHARE = 0.75, 0.7, 0.85
_SPOT_DRAIN_SECONDS = 60  # of the two minutes of a spot notice
# Characters of a worker or a node pool in the chart, and those that the model or the family keeps of them.
_MAX_KEY, _MIN_START = 30, 6


def build_values(plan: Plan, machine: Instance, model: NamedModel, tenants: Sequence[str] = ()) -> Values:
    """Values for `helm install --values`. JSON is YAML, so helm reads them as they are printed.

    `tenants` are those with their own workers. Raises UsageError if the plan has another number of them. A
    machine that Karpenter does not start has no node pool.
    """
    deployment, has_node_pools = plan.deployment, plan.karpenter_gpu_name is not None
    _check_tenants(plan, tenants)
    workers: Values = {}
    node_pools: Values = {}
    for tenant in tenants or ("",):
        owner = tenant if deployment.tenancy == Tenancy.INSTANCE else ""
        sharing = 1 if owner else deployment.pools
        for capacity, replicas, entry in _entries(plan, machine, model):
            node_pool = _key(machine.family, owner, capacity)
            worker = entry | ({"nodePool": node_pool} if has_node_pools else {}) | _owned(tenant)
            workers[_key(model.name, tenant, capacity)] = worker
            node_pools[node_pool] = _node_pool(plan, machine, capacity, replicas * sharing) | _owned(owner)
    karpenter = {"karpenter": {"enabled": True, "nodePools": node_pools}} if has_node_pools else {}
    settings = _settings(plan, machine)
    return {"settings": settings, "workers": workers, **karpenter, "keda": {"enabled": True}}


def _check_tenants(plan: Plan, tenants: Sequence[str]) -> None:
    is_shared, pools = plan.deployment.tenancy == Tenancy.SHARED, plan.deployment.pools
    if is_shared and tenants:
        raise UsageError(
            "in this plan all tenants share their workers; plan with --isolation gpu or instance",
            option="--tenant",
        )
    if not is_shared and len(set(tenants)) != pools:
        raise UsageError(
            f"the plan has separate workers for {pools} tenants, got {len(set(tenants))}; give --tenant once "
            "for each",
            option="--tenant",
        )


def _settings(plan: Plan, machine: Instance) -> Values:
    deployment = plan.deployment
    admission: Values = {"slo_seconds": deployment.slo_seconds} if deployment.slo_seconds else {}
    if deployment.default_quality != FULL:
        admission["default_quality"] = deployment.default_quality
    api = {"usd_per_gpu_hour": round(plan.usd_per_hour / machine.gpus, 4)} if plan.usd_per_hour else {}
    return {name: section for name, section in (("api", api), ("admission", admission)) if section}


def _entries(plan: Plan, machine: Instance, model: NamedModel) -> list[tuple[str, int, Values]]:
    """Workers by capacity type, with their maximum: on demand, and spot if the plan has any."""
    chart, worker = plan.deployment.chart, _worker(plan, machine, model)
    steady = worker | {
        "minReplicas": chart.min_replicas,
        "maxReplicas": chart.max_replicas,
        "scaling": _scaling(chart, chart.scheduled_replicas),
    }
    if not chart.spot_replicas:
        return [("on-demand", chart.max_replicas, steady)]
    spot = worker | {
        "minReplicas": chart.min_spot_replicas,
        "maxReplicas": chart.spot_replicas,
        "drainSeconds": _SPOT_DRAIN_SECONDS,
        "scaling": _scaling(chart, chart.spot_replicas),
    }
    return [("on-demand", chart.max_replicas, steady), ("spot", chart.spot_replicas, spot)]


def _scaling(chart: ChartWorkers, scheduled_replicas: int) -> Values:
    found: Values = {"backlogSecondsPerWorker": chart.backlog_seconds_per_worker}
    if chart.replicas_while_active:
        found["replicasWhileActive"] = chart.replicas_while_active
    if chart.start_hour != chart.end_hour:
        hours = {"start": f"0 {chart.start_hour} * * *", "end": f"0 {chart.end_hour} * * *"}
        found["schedule"] = [hours | {"timezone": "Etc/UTC", "replicas": scheduled_replicas}]
    return found


def _worker(plan: Plan, machine: Instance, model: NamedModel) -> Values:
    deployment, gib = plan.deployment, machine.ram_gib / machine.gpus
    cpu = max(1, math.floor(machine.vcpu / machine.gpus * _CPU_SHARE))
    memory = {"requests": _MEMORY_REQUEST_SHARE, "limits": _MEMORY_LIMIT_SHARE}
    resources = {kind: {"memory": f"{math.floor(gib * share)}Gi"} for kind, share in memory.items()}
    resources["requests"]["cpu"] = str(cpu)
    pipeline = {name: getattr(deployment, name) for name in ("offload", "compile", "dtype", "weights")}
    return {
        # With NAME=, the worker serves the model under the name that KEDA and `deploy check` ask for.
        "model": model.name if model.location == model.name else f"{model.name}={model.location}",
        "modelName": model.name,
        "gpus": 1,
        "settings": {"pipeline": pipeline},
        "drainSeconds": deployment.chart.drain_seconds,
        "resources": resources,
    }


def _node_pool(plan: Plan, machine: Instance, capacity: str, gpus: int) -> Values:
    whole_nodes = math.ceil(gpus / machine.gpus) * machine.gpus
    return {
        "gpu": plan.karpenter_gpu_name,
        "gpusPerNode": [str(machine.gpus)],
        "capacity": [capacity],
        "maxGpus": whole_nodes,
        "families": [machine.family],
    }


def _owned(tenant: str) -> Values:
    return {"tenant": tenant} if tenant else {}


def _key(start: str, tenant: str, capacity: str) -> str:
    """The name of a worker or a node pool in the chart, which is a part of Kubernetes names."""
    end = "".join(f"-{part}" for part in (tenant, "spot" if capacity == "spot" else "") if part)
    if len(end) > _MAX_KEY - _MIN_START:
        raise UsageError(
            f"{tenant} is too long for the chart, whose names have {_MAX_KEY} characters", option="--tenant"
        )
    start = re.sub(r"[^a-z0-9]+", "-", start.lower()).strip("-")[: _MAX_KEY - len(end)].rstrip("-")
    return start + end
