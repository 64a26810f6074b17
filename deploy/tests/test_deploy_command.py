"""`filmgate deploy`, from a real plan to a rendered chart, and against a real server."""

import json

import pytest
from typer.testing import CliRunner

from deploy.tests.charts import ROOT, containers, environment, render
from filmgate.cli import app
from filmgate.errors import UsageError
from filmgate.models.names import name_model
from filmgate.settings import read_settings
from tests.server_process import ServerProcess

PLAN_OPTIONS = [
    "--model",
    "wan2.1-t2v-1.3b",
    "--size",
    "832x480",
    "--seconds",
    "5",
    "--clips-per-day",
    "8000",
]


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="session")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    options = [
        *PLAN_OPTIONS,
        "--slo-seconds",
        "300",
        "--traffic",
        "business",
        "--interruptible",
        "0.3",
        "--json",
    ]
    path.write_text(run("plan", "video", *options).stdout)
    return path


def test_the_chart_accepts_the_values_of_a_plan(plan, tmp_path):
    options = ["--model-name", "wan2.1-t2v-1.3b", "--model", "s3://weights/models/wan/v1/"]
    printed = run("deploy", "values", "--plan", plan, *options)
    values = tmp_path / "values.json"
    values.write_text(printed.stdout)
    fleet = json.loads(plan.read_text())["fleet"]
    rendered = render("--values", ROOT / "deploy/values/one-tenant.yaml", "--values", values)
    limits = {
        pool["metadata"]["name"]: pool["spec"]["limits"]["nvidia.com/gpu"] for pool in rendered.of("NodePool")
    }
    family = fleet["machine"].partition(".")[0]
    planned = int(limits[f"films-{family}"]) + int(limits.get(f"films-{family}-spot", 0))
    assert planned == max(fleet["replicas"], fleet["replicas_p99"])
    worker = rendered.pods["films-worker-wan2-1-t2v-1-3b"]
    pull, served = (container["args"][-1] for container in containers(worker))
    assert pull == "s3://weights/models/wan/v1/"
    assert name_model(served).name == "wan2.1-t2v-1.3b"
    settings, _ = read_settings(environment(worker["spec"]["containers"][0]))
    assert settings.pipeline.offload == fleet["deployment"]["offload"]
    assert settings.admission.slo_seconds == fleet["deployment"]["slo_seconds"] == 300
    names = {scaled["spec"]["scaleTargetRef"]["name"] for scaled in rendered.of("ScaledObject")}
    assert {name for name in rendered.pods if "worker" in name} == names


def test_separate_tenants_of_a_plan_have_workers_and_nodes_that_no_other_tenant_uses(tmp_path):
    options = ["--slo-seconds", "300", "--tenants", "2", "--isolation", "instance", "--json"]
    path, values = tmp_path / "plan.json", tmp_path / "values.json"
    path.write_text(run("plan", "video", *PLAN_OPTIONS, *options).stdout)
    tenants = ["--tenant", "acme", "--tenant", "globex"]
    values.write_text(run("deploy", "values", "--plan", path, "--model-name", "wan", *tenants).stdout)
    base = ["--values", ROOT / "deploy/values/sqs.yaml", "--set", "keda.trigger=prometheus"]
    rendered = render(*base, "--values", values)
    for tenant in ("acme", "globex"):
        pod = rendered.pods[f"films-worker-wan-{tenant}"]["spec"]
        assert pod["containers"][0]["args"][-2:] == ["--tenant", tenant]
        nodes = next(
            one["spec"]["template"]
            for one in rendered.of("NodePool")
            if one["metadata"]["name"].endswith(tenant)
        )
        assert nodes["metadata"]["labels"] == pod["nodeSelector"]
        assert tenant in {taint["value"] for taint in nodes["spec"]["taints"]}


def test_the_instance_of_a_plan_may_be_in_your_own_catalog(plan, tmp_path):
    document = json.loads(plan.read_text())
    document["fleet"]["deployment"]["instance_type"] = "rack.1gpu"
    path, mine = tmp_path / "plan.json", tmp_path / "mine.toml"
    path.write_text(json.dumps(document))
    instance = "gpu = 'H100'\nvcpu = 16\nram_gib = 128\nas_of = '2026-11-01'\n"
    mine.write_text(f"[instances.'rack.1gpu']\n{instance}")
    options = ["deploy", "values", "--plan", path, "--model-name", "wan"]
    with pytest.raises(UsageError, match=r"no instance type rack\.1gpu"):
        run(*options)
    assert json.loads(run(*options, "--catalog", mine).stdout)["workers"]["wan"]["nodePool"] == "rack"


def test_plans_that_scale_to_zero_become_workers_that_start_from_zero(tmp_path):
    """The values of two plans can be installed together: the API accepts the jobs of both models."""
    options = ["--clips-per-day", "40", "--slo-seconds", "900", "--region", "eu-central-1", "--json"]
    path, values = tmp_path / "plan.json", {name: tmp_path / f"{name}.json" for name in ("wan", "again")}
    path.write_text(run("plan", "video", *PLAN_OPTIONS, *options).stdout)
    fleet = json.loads(path.read_text())["fleet"]
    assert fleet["pattern"] == "queue with scale to zero"
    for name, file in values.items():
        file.write_text(run("deploy", "values", "--plan", path, "--model-name", name).stdout)
    given = [option for file in values.values() for option in ("--values", file)]
    rendered = render("--values", ROOT / "deploy/values/one-tenant.yaml", *given)
    for scaled in rendered.of("ScaledObject"):
        spec, chart = scaled["spec"], fleet["deployment"]["chart"]
        assert (spec["idleReplicaCount"], spec["minReplicaCount"]) == (0, chart["replicas_while_active"])
        assert spec["maxReplicaCount"] == fleet["replicas"]
    settings, _ = read_settings(environment(rendered.pods["films-api"]["spec"]["containers"][0]))
    assert settings.admission.scale_from_zero == "again,wan"
    settings, _ = read_settings(environment(rendered.pods["films-worker-wan"]["spec"]["containers"][0]))
    assert settings.admission.slo_seconds == 900


def test_a_running_server_is_compared_with_the_plan_and_a_missing_worker_fails(plan, tmp_path):
    server = ServerProcess(tmp_path, "--no-worker")
    try:
        where = ["--url", server.url, "--key-file", tmp_path / "data/local.key"]
        options = ["--plan", plan, *where, "--model-name", "wan2.1-t2v-1.3b", "--json"]
        checked = run("deploy", "check", *options)
        assert checked.exit_code == 1
        findings = {one["subject"]: one for one in json.loads(checked.stdout)["findings"]}
        assert findings["workers"]["message"].startswith("0 live")
        (tmp_path / "wrong.key").write_text("fg_wrong")
        with pytest.raises(UsageError, match="lacks the `admin` scope"):
            run("deploy", "check", *options, "--key-file", tmp_path / "wrong.key")
    finally:
        server.stop()


def test_migrate_creates_the_schema(tmp_path, monkeypatch):
    monkeypatch.setenv("FILMGATE_DATA", str(tmp_path))
    assert run("deploy", "migrate").stdout == "the schema is up to date\n"
    assert (tmp_path / "filmgate.db").stat().st_size > 0
    assert run("deploy", "migrate").exit_code == 0
