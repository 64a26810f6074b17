"""Values from a plan, and a comparison of an installation with its plan."""

import json
from dataclasses import asdict, replace
from math import inf

import pytest
from typer.testing import CliRunner

from filmgate.catalog.loader import load_catalog
from filmgate.cli import app
from filmgate.deploy.comparison import compare
from filmgate.deploy.measurements import Measured, read_measured
from filmgate.deploy.plan import Plan, read_plan
from filmgate.deploy.values import build_values
from filmgate.errors import RunError, UsageError
from filmgate.models.names import NamedModel, name_model
from filmgate.planner.fleet.answer import ChartWorkers, Deployment
from filmgate.telemetry.findings import Verdict

CHART = ChartWorkers(
    min_replicas=2,
    max_replicas=8,
    min_spot_replicas=0,
    spot_replicas=0,
    replicas_while_active=0,
    scheduled_replicas=0,
    start_hour=0,
    end_hour=0,
    backlog_seconds_per_worker=139,
    drain_seconds=162,
)
DEPLOYMENT = Deployment(
    instance_type="g7e.2xlarge",
    machines=6,
    machines_in_quiet_hours=2,
    spare_machines=1,
    workers_per_machine=1,
    zones=2,
    model="Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
    region="us-east-1",
    offload="none",
    compile="auto",
    dtype="bfloat16",
    weights="full",
    default_quality="full",
    is_tiled=False,
    tenants=1,
    tenancy="shared",
    slo_seconds=None,
    is_scaled_to_zero=False,
    chart=CHART,
)
PLAN = Plan(
    karpenter_gpu_name="rtx-pro-server-6000",
    replicas=6,
    usd_per_hour=3.36,
    seconds_per_clip=139.0,
    seconds_per_clip_high=162.0,
    latency_p95_seconds=250.0,
    deployment=DEPLOYMENT,
)
MODEL = NamedModel("wan2.1-t2v-1.3b", "s3://weights/models/wan/v1/")


def plan_with(chart=(), **deployment):
    """The plan with another deployment; `chart` are changed values of its chart."""
    return replace(PLAN, deployment=replace(DEPLOYMENT, chart=replace(CHART, **dict(chart)), **deployment))


def values_of(plan, *tenants, model=MODEL):
    return build_values(plan, load_catalog().instances[plan.deployment.instance_type], model, tenants)


def test_workers_and_nodes_have_the_size_of_the_plan():
    values = values_of(PLAN)
    worker = values["workers"]["wan2-1-t2v-1-3b"]
    assert (worker["minReplicas"], worker["maxReplicas"], worker["drainSeconds"]) == (2, 8, 162)
    assert worker["scaling"] == {"backlogSecondsPerWorker": 139}
    pool = values["karpenter"]["nodePools"]["g7e"]
    assert (pool["gpu"], pool["maxGpus"], pool["capacity"]) == ("rtx-pro-server-6000", 8, ["on-demand"])
    assert values["settings"] == {"api": {"usd_per_gpu_hour": 3.36}}


def test_workers_run_as_the_plan_assumed_and_jobs_have_its_deadline_and_quality():
    planned = {"offload": "layers", "compile": "off", "dtype": "float16", "weights": "int8"}
    values = values_of(plan_with(**planned, slo_seconds=300.0, default_quality="draft"))
    (worker,) = values["workers"].values()
    assert worker["settings"] == {"pipeline": planned}
    assert values["settings"]["admission"] == {"slo_seconds": 300.0, "default_quality": "draft"}


@pytest.mark.parametrize("location", ["s3://weights/models/wan/v1/", "/models/wan", "wan2.1-t2v-1.3b"])
def test_a_worker_serves_the_name_that_its_scaling_asks_for(location):
    (worker,) = values_of(PLAN, model=NamedModel("wan2.1-t2v-1.3b", location))["workers"].values()
    assert name_model(worker["model"]).name == worker["modelName"] == "wan2.1-t2v-1.3b"


def test_a_machine_without_a_price_leaves_the_price_of_a_gpu_hour_to_the_settings():
    assert values_of(replace(PLAN, usd_per_hour=None))["settings"] == {}


def test_a_machine_that_karpenter_does_not_start_has_no_node_pool():
    values = values_of(replace(PLAN, karpenter_gpu_name=None))
    assert "karpenter" not in values
    assert "nodePool" not in values["workers"]["wan2-1-t2v-1-3b"]


def test_a_worker_requests_less_than_its_node_has():
    machine = load_catalog().instances["g6e.xlarge"]
    worker = values_of(plan_with(instance_type="g6e.xlarge"))["workers"]["wan2-1-t2v-1-3b"]
    requested, limit = (int(worker["resources"][kind]["memory"][:-2]) for kind in ("requests", "limits"))
    assert 0 < requested < limit < machine.ram_gib
    assert int(worker["resources"]["requests"]["cpu"]) < machine.vcpu


def test_spot_instances_of_the_plan_are_workers_of_their_own_that_drain_within_the_notice():
    values = values_of(plan_with(chart={"max_replicas": 5, "min_spot_replicas": 2, "spot_replicas": 3}))
    steady, spot = values["workers"].values()
    assert (steady["maxReplicas"], spot["minReplicas"], spot["maxReplicas"]) == (5, 2, 3)
    assert spot["drainSeconds"] < 120
    assert values["karpenter"]["nodePools"]["g7e-spot"]["capacity"] == ["spot"]


def test_tenants_on_separate_instances_have_their_own_workers_and_nodes():
    values = values_of(plan_with(tenants=2, tenancy="instance"), "acme", "globex")
    assert {name: worker["tenant"] for name, worker in values["workers"].items()} == {
        "wan2-1-t2v-1-3b-acme": "acme",
        "wan2-1-t2v-1-3b-globex": "globex",
    }
    pools = values["karpenter"]["nodePools"]
    assert {name: (pool["tenant"], pool["maxGpus"]) for name, pool in pools.items()} == {
        "g7e-acme": ("acme", 8),
        "g7e-globex": ("globex", 8),
    }


def test_tenants_on_separate_gpus_have_their_own_workers_on_shared_nodes():
    values = values_of(plan_with(tenants=2, tenancy="gpu"), "acme", "globex")
    assert [worker["tenant"] for worker in values["workers"].values()] == ["acme", "globex"]
    assert {worker["nodePool"] for worker in values["workers"].values()} == {"g7e"}
    assert values["karpenter"]["nodePools"]["g7e"]["maxGpus"] == 16
    assert "tenant" not in values["karpenter"]["nodePools"]["g7e"]


@pytest.mark.parametrize(
    ("tenancy", "tenants", "message"),
    [
        ("instance", [], "separate workers for 2 tenants, got 0"),
        ("gpu", ["acme", "acme"], "separate workers for 2 tenants, got 1"),
        ("shared", ["acme"], "all tenants share"),
        ("instance", ["acme", "t" * 30], "too long"),
    ],
)
def test_tenants_that_the_plan_does_not_separate_are_refused(tenancy, tenants, message):
    with pytest.raises(UsageError, match=message):
        values_of(plan_with(tenants=2, tenancy=tenancy), *tenants)


def test_a_plan_that_scales_to_zero_has_no_minimum():
    chart = {
        "min_replicas": 0,
        "max_replicas": 3,
        "replicas_while_active": 2,
        "backlog_seconds_per_worker": 278,
    }
    values = values_of(plan_with(chart=chart, slo_seconds=900.0))
    (worker,) = values["workers"].values()
    assert (worker["minReplicas"], worker["maxReplicas"]) == (0, 3)
    assert worker["scaling"] == {"backlogSecondsPerWorker": 278, "replicasWhileActive": 2}
    assert values["settings"]["admission"] == {"slo_seconds": 900.0}
    assert "admission" not in values_of(PLAN)["settings"]


def test_a_plan_for_the_busy_hours_has_their_schedule_on_demand_and_on_spot():
    hours = {"scheduled_replicas": 6, "start_hour": 8, "end_hour": 18, "spot_replicas": 3}
    workers = values_of(plan_with(chart=hours))["workers"].values()
    schedule = {"start": "0 8 * * *", "end": "0 18 * * *", "timezone": "Etc/UTC"}
    assert [worker["scaling"]["schedule"] for worker in workers] == [
        [schedule | {"replicas": 6}],
        [schedule | {"replicas": 3}],
    ]


def test_a_plan_of_machines_with_many_gpus_buys_whole_machines():
    pool = values_of(plan_with(instance_type="p5.48xlarge"))["karpenter"]["nodePools"]["p5"]
    assert (pool["gpusPerNode"], pool["maxGpus"]) == (["8"], 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "is not JSON"),
        ("[]", "is not a plan"),
        (json.dumps({"verdict": "x", "fleet": "two machines"}), "is not a plan"),
        (
            json.dumps({"verdict": "No machine renders this clip", "fleet": None}),
            "No machine renders this clip",
        ),
        (
            json.dumps({"verdict": "x", "fleet": {"replicas": 1}, "cost": {"a": 1}, "time": {"b": 1}}),
            "another version",
        ),
        (
            json.dumps({"verdict": "x", "fleet": {"replicas": 1, "engine_arguments": "--tp 2"}}),
            "a plan for a language model",
        ),
        (
            json.dumps(
                {"verdict": "Not with Filmgate: fp8", "is_possible": False}
                | {"fleet": {"replicas": 1}, "cost": {"a": 1}, "time": {"b": 1}}
            ),
            "the plan is not possible: Not with Filmgate: fp8",
        ),
    ],
)
def test_a_file_that_is_no_usable_plan_is_refused_with_the_reason(text, message, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_plan(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_plan(tmp_path / "missing.json")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_plan_is_read_in_the_encodings_that_shells_write(encoding, tmp_path):
    """`> plan.json` writes UTF-16 in Windows PowerShell."""
    path = tmp_path / "plan.json"
    document = {
        "verdict": "Run 6 x g7e.2xlarge",
        "fleet": {
            "pattern": "always warm",
            "replicas": 6,
            "gpus_per_replica": 1,
            "latency_p95": 250.0,
            "software": {"karpenter_gpu_name": "rtx-pro-server-6000"},
            "deployment": asdict(DEPLOYMENT),
        },
        "cost": {"usd_per_hour": 3.36},
        "time": {"seconds_per_clip": 139.0, "high": 162.0},
    }
    path.write_text(json.dumps(document), encoding=encoding)
    assert read_plan(path) == PLAN


def values_command(path, *options):
    """`filmgate deploy values` for the plan that `filmgate plan video` writes with these options."""
    clip = ["--model", "wan2.1-t2v-1.3b", "--size", "832x480", "--seconds", "5", "--slo-seconds", "300"]
    path.write_text(CliRunner().invoke(app, ["plan", "video", *clip, *options, "--json"]).stdout)
    return CliRunner().invoke(app, ["deploy", "values", "--plan", str(path), "--model-name", "wan"])


def test_a_plan_that_filmgate_cannot_run_has_no_values(tmp_path):
    """Its fleet is that of software with fp8; workers in bf16 would miss the target."""
    refused = values_command(tmp_path / "plan.json", "--precision", "fp8", "--clips-per-day", "500")
    assert isinstance(refused.exception, UsageError)
    assert "the plan is not possible: Not with Filmgate: " in str(refused.exception)
    assert refused.stdout == ""


def test_the_values_of_a_fleet_that_the_plan_does_not_recommend_say_so(tmp_path):
    own, managed = (values_command(tmp_path / "plan.json", "--clips-per-day", n) for n in ("8000", "5"))
    assert json.loads(tmp_path.joinpath("plan.json").read_text())["verdict"].startswith("Use ")
    assert own.stderr == ""
    assert managed.stderr.startswith("the plan recommends a managed provider; these are the values of ")
    assert managed.stderr.count("\n") == 1
    assert json.loads(managed.stdout)["workers"].keys() == {"wan"}


METRICS = """\
# TYPE filmgate_queue_up gauge
filmgate_queue_up 1
# TYPE filmgate_workers gauge
filmgate_workers{model="wan",route="gpu"} 3
filmgate_workers{model="wan",route="managed"} 9
# TYPE filmgate_jobs_ended_total counter
filmgate_jobs_ended_total{model="wan",reason="",route="gpu",state="completed",tenant="a"} 30
filmgate_jobs_ended_total{model="wan",reason="",route="gpu",state="completed",tenant="b"} 10
filmgate_jobs_ended_total{model="wan",reason="x",route="gpu",state="failed",tenant="b"} 5
# TYPE filmgate_gpu_seconds_total counter
filmgate_gpu_seconds_total{model="wan",route="gpu",tenant="a"} 4000
# TYPE filmgate_job_seconds histogram
filmgate_job_seconds_bucket{le="60.0",model="wan",route="gpu"} 10
filmgate_job_seconds_bucket{le="300.0",model="wan",route="gpu"} 39
filmgate_job_seconds_bucket{le="+Inf",model="wan",route="gpu"} 40
filmgate_job_seconds_count{model="wan"} 40
filmgate_job_seconds_sum{model="wan"} 5000
"""


def test_measurements_are_those_of_the_model_on_our_gpus():
    assert read_measured(METRICS, "wan") == Measured(3, 100.0, 300.0, 40)
    assert read_measured(METRICS, "other") == Measured(0, None, None, 0)
    with pytest.raises(RunError, match="cannot reach its database"):
        read_measured("filmgate_queue_up 0\n", "wan")


@pytest.mark.parametrize(
    ("measured", "verdicts"),
    [
        (Measured(3, 140.0, 240.0, 40), ["ok", "ok", "ok"]),
        (Measured(1, 140.0, 240.0, 40), ["fail", "ok", "ok"]),
        (Measured(9, 170.0, 300.0, 40), ["warn", "fail", "warn"]),
        (Measured(3, 140.0, 600.0, 40), ["ok", "ok", "fail"]),
        (Measured(3, 140.0, inf, 40), ["ok", "ok", "fail"]),
        (Measured(3, 140.0, 600.0, 5), ["ok", "ok", "warn"]),
        (Measured(3, None, None, 0), ["ok", "warn"]),
    ],
)
def test_an_installation_is_compared_with_its_plan(measured, verdicts):
    findings = list(compare(PLAN, measured))
    assert [finding.verdict.value for finding in findings] == verdicts
    assert all(finding.remedy for finding in findings if finding.verdict is not Verdict.OK)
    assert not any("inf" in finding.message for finding in findings)


@pytest.mark.parametrize(("live", "verdict"), [(3, "fail"), (5, "warn"), (6, "ok"), (33, "warn")])
def test_the_workers_of_all_pools_and_of_spot_are_compared(live, verdict):
    """Of two tenants, each with two workers on demand and one on spot that always run."""
    chart = {"min_spot_replicas": 1, "spot_replicas": 8}
    plan = plan_with(chart=chart, tenants=2, tenancy="instance")
    workers = next(compare(plan, Measured(live, 140.0, 240.0, 40)))
    assert workers.verdict == verdict
