"""Values from a plan, and a comparison of an installation with its plan."""

import json
from dataclasses import replace

import pytest

from filmgate.catalog.loader import load_catalog
from filmgate.deploy.comparison import compare
from filmgate.deploy.measurements import Measured, read_measured
from filmgate.deploy.plan import ChartValues, Plan, read_plan
from filmgate.deploy.values import build_values
from filmgate.errors import RunError, UsageError
from filmgate.models.names import NamedModel
from filmgate.telemetry.findings import Verdict

PLAN = Plan(
    machine="g7e.2xlarge",
    karpenter_gpu_name="rtx-pro-server-6000",
    replicas=6,
    warm_replicas=2,
    usd_per_hour=3.36,
    seconds_per_clip=139.0,
    seconds_per_clip_high=162.0,
    latency_p95_seconds=250.0,
    chart=ChartValues(min_replicas=2, max_replicas=8, backlog_seconds_per_worker=139, drain_seconds=162),
)
MODEL = NamedModel("wan2.1-t2v-1.3b", "s3://weights/models/wan/v1/")


def values_of(plan):
    return build_values(plan, load_catalog().instances[plan.machine], MODEL)


def test_workers_and_nodes_have_the_size_of_the_plan():
    values = values_of(PLAN)
    worker = values["workers"]["wan2-1-t2v-1-3b"]
    assert (worker["minReplicas"], worker["maxReplicas"], worker["drainSeconds"]) == (2, 8, 162)
    assert worker["scaling"] == {"backlogSecondsPerWorker": 139}
    pool = values["karpenter"]["nodePools"]["g7e"]
    assert (pool["gpu"], pool["maxGpus"], pool["capacity"]) == ("rtx-pro-server-6000", 8, ["on-demand"])
    assert values["settings"]["api"] == {"usd_per_gpu_hour": 3.36}


def test_workers_run_as_the_plan_assumed_and_jobs_have_its_deadline():
    values = values_of(replace(PLAN, pipeline={"offload": "layers", "dtype": "float16"}, slo_seconds=300.0))
    (worker,) = values["workers"].values()
    assert worker["settings"] == {"pipeline": {"offload": "layers", "dtype": "float16"}}
    assert values["settings"]["admission"] == {"slo_seconds": 300.0}


def test_a_worker_requests_less_than_its_node_has():
    machine = load_catalog().instances["g6e.xlarge"]
    worker = values_of(replace(PLAN, machine="g6e.xlarge"))["workers"]["wan2-1-t2v-1-3b"]
    requested, limit = (int(worker["resources"][kind]["memory"][:-2]) for kind in ("requests", "limits"))
    assert 0 < requested < limit < machine.ram_gib
    assert int(worker["resources"]["requests"]["cpu"]) < machine.vcpu


def test_spot_instances_of_the_plan_are_workers_of_their_own_that_drain_within_the_notice():
    values = values_of(replace(PLAN, chart=replace(PLAN.chart, max_replicas=5, spot_replicas=3)))
    steady, spot = values["workers"].values()
    assert (steady["maxReplicas"], spot["minReplicas"], spot["maxReplicas"]) == (5, 0, 3)
    assert spot["drainSeconds"] < 120
    assert values["karpenter"]["nodePools"]["g7e-spot"]["capacity"] == ["spot"]


def test_a_plan_that_scales_to_zero_has_no_minimum_and_its_jobs_are_accepted_without_workers():
    chart = ChartValues(0, 3, replicas_while_active=2, backlog_seconds_per_worker=278)
    values = values_of(replace(PLAN, chart=chart, slo_seconds=900.0))
    (worker,) = values["workers"].values()
    assert (worker["minReplicas"], worker["maxReplicas"]) == (0, 3)
    assert worker["scaling"] == {"backlogSecondsPerWorker": 278, "replicasWhileActive": 2}
    assert values["settings"]["admission"] == {"slo_seconds": 900.0, "scale_from_zero": "wan2.1-t2v-1.3b"}
    assert "admission" not in values_of(PLAN)["settings"]


def test_a_plan_for_the_busy_hours_has_their_schedule():
    chart = ChartValues(1, 6, scheduled_replicas=6, start_hour=8, end_hour=18)
    (worker,) = values_of(replace(PLAN, chart=chart))["workers"].values()
    assert worker["scaling"]["schedule"] == [
        {"start": "0 8 * * *", "end": "0 18 * * *", "timezone": "Etc/UTC", "replicas": 6}
    ]


def test_a_plan_of_machines_with_many_gpus_buys_whole_machines():
    pool = values_of(replace(PLAN, machine="p5.48xlarge"))["karpenter"]["nodePools"]["p5"]
    assert (pool["gpusPerNode"], pool["maxGpus"]) == (["8"], 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "is not JSON"),
        ("[]", "is not a plan"),
        (
            json.dumps({"verdict": "No machine renders this clip", "fleet": None}),
            "No machine renders this clip",
        ),
        (
            json.dumps({"verdict": "x", "fleet": {"replicas": 1}, "cost": {"a": 1}, "time": {"b": 1}}),
            "has no",
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
        (Measured(3, 140.0, 600.0, 5), ["ok", "ok", "warn"]),
        (Measured(3, None, None, 0), ["ok", "warn"]),
    ],
)
def test_an_installation_is_compared_with_its_plan(measured, verdicts):
    findings = list(compare(PLAN, measured))
    assert [finding.verdict.value for finding in findings] == verdicts
    assert all(finding.remedy for finding in findings if finding.verdict is not Verdict.OK)
