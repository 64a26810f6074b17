"""How the chart scales workers: KEDA's triggers, office hours, and workers that start from zero."""

import re

import pytest
import yaml

from deploy.tests.charts import environment, render_values
from filmgate.jobs import Route
from filmgate.scheduling.wakers.sqs_queues import fill_name, parse_address
from filmgate.settings import read_settings
from filmgate.telemetry.metrics import METRICS
from tests.prometheus import promtool


def test_keda_owns_the_number_of_workers_and_counts_running_jobs():
    rendered = render_values("one-tenant")
    assert "replicas" not in rendered.one("Deployment", "worker")["spec"]
    spec = rendered.one("ScaledObject")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["scaleTargetRef"]["name"]) == (
        2,
        8,
        "films-worker-wan",
    )
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    windows = [behavior[way]["stabilizationWindowSeconds"] for way in ("scaleUp", "scaleDown")]
    assert windows == [60, 300]
    queries = [trigger["metadata"]["query"] for trigger in spec["triggers"]]
    assert ["filmgate_backlog_seconds" in queries[0], 'state="running"' in queries[1]] == [True, True]
    assert render_values("no-keda").one("Deployment", "worker")["spec"]["replicas"] == 4


def test_scaling_queries_name_metrics_and_labels_that_filmgate_exports():
    names = {metric.name for metric in METRICS}
    for trigger in render_values("one-tenant").one("ScaledObject")["spec"]["triggers"]:
        used = set(re.findall(r"(\w+)\{", trigger["metadata"]["query"]))
        assert "filmgate_queue_up" in used
        assert used <= names


def scaling_test(queries, series, values):
    """A test for promtool: what the queries for backlog and running jobs find; None is an empty result."""
    found = [[] if value is None else [{"labels": "{}", "value": value}] for value in values]
    return {
        "input_series": [{"series": name, "values": value} for name, value in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": "0m", "exp_samples": samples}
            for query, samples in zip(queries, found, strict=True)
        ],
    }


def test_a_release_scales_on_its_own_jobs_and_never_takes_missing_metrics_for_an_empty_queue(tmp_path):
    """An empty result is an error for KEDA (ignoreNullValues), which then keeps the workers."""
    triggers = [trigger["metadata"] for trigger in scaled_object("one-tenant")["triggers"]]
    assert {trigger["ignoreNullValues"] for trigger in triggers} == {"false"}
    queries = [trigger["query"] for trigger in triggers]
    gpu = 'route="gpu",model="wan2.1-t2v-14b"'
    up, down = (
        {f'filmgate_queue_up{{namespace="films",instance="{n}"}}': str(on) for n in "ab"} for on in (1, 0)
    )
    jobs = {
        f'{name}{gpu},tenant="{tenant}",namespace="films",instance="{n}"}}': value
        for name, value in [("filmgate_backlog_seconds{", "120"), ('filmgate_jobs{state="running",', "3")]
        for tenant in ("acme", "bank")
        for n in "ab"
    }
    others = {name.replace('"films"', '"other"'): value for name, value in up.items()}
    others |= {name.replace('"films"', '"other"'): "900" for name in jobs}
    tests = [
        scaling_test(queries, {**up, **jobs, **others}, (240, 6)),
        scaling_test(queries, {**up, **others}, (0, 0)),
        scaling_test(queries, {**down, **others}, (None, None)),  # the database cannot be read
        scaling_test(queries, others, (None, None)),  # no server is scraped
    ]
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": tests}))
    code, output = promtool("test", "rules", path)
    assert code == 0, output


def test_other_labels_of_the_metrics_can_select_the_release():
    spec = scaled_object("one-tenant", "--set", "monitoring.prometheusLabels.job=films")
    for trigger in spec["triggers"]:
        assert trigger["metadata"]["query"].count('job="films"') == 2
        assert "namespace" not in trigger["metadata"]["query"]


def test_at_night_there_are_no_workers_and_office_hours_have_a_minimum():
    spec = render_values("office-hours").one("ScaledObject")["spec"]
    (cron,) = [trigger["metadata"] for trigger in spec["triggers"] if trigger["type"] == "cron"]
    assert (spec["minReplicaCount"], cron["desiredReplicas"]) == (0, "2")
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"


def test_the_api_accepts_jobs_of_models_whose_workers_scale_to_zero_and_of_no_others():

    def accepted(name, *options):
        container = render_values(name, *options).pods["films-api"]["spec"]["containers"][0]
        return read_settings(environment(container))[0].admission.scale_from_zero

    assert accepted("office-hours") == "wan2.1-t2v-14b"
    assert accepted("one-tenant") == ""
    assert accepted("spot") == ""  # two workers on demand stay
    assert accepted("many-models", "--set", "workers.ltx.minReplicas=0") == "ltx-video"
    assert accepted("office-hours", "--set", "settings.admission.scale_from_zero=*") == "*"
    assert accepted("no-keda", "--set", "workers.wan.minReplicas=0") == "", "nothing would start a worker"
    own_are_cold = ("--set", "keda.enabled=true,workers.wan-acme.minReplicas=0")
    assert accepted("dedicated-workers", *own_are_cold) == "wan2.1-t2v-14b", (
        "shared workers do not serve acme"
    )


def scaled_object(name, *options):
    rendered = render_values(name, "--set", "keda.enabled=true", *options)
    return rendered.one("ScaledObject", "films-worker-wan")["spec"]


@pytest.mark.parametrize("active", [0, 2])
def test_an_installation_begins_with_a_worker_that_tells_the_api_the_limits_of_the_model(active):
    """The API rejects jobs of a model whose limits it does not know, so that nothing would start a worker."""
    zero = ["--set", f"workers.wan.minReplicas=0,workers.wan.scaling.replicasWhileActive={active}"]
    rendered = render_values("one-tenant", *zero)
    assert "replicas" not in rendered.one("Deployment", "films-worker-wan")["spec"], (
        "one, until KEDA changes it"
    )
    (container,) = rendered.pods["films-worker-wan"]["spec"]["containers"]
    probe = container["startupProbe"]
    start_seconds = probe["failureThreshold"] * probe["periodSeconds"]
    assert scaled_object("one-tenant", *zero)["initialCooldownPeriod"] >= 2 * start_seconds > 0
    assert "initialCooldownPeriod" not in scaled_object("one-tenant")


def test_workers_that_scale_to_zero_have_a_minimum_while_they_run():
    """KEDA's idleReplicaCount: a spare worker while any runs, and none otherwise."""
    zero = ["--set", "workers.wan.minReplicas=0", "--set", "workers.wan.scaling.replicasWhileActive=2"]
    spec = scaled_object("one-tenant", *zero)
    assert (spec["idleReplicaCount"], spec["minReplicaCount"]) == (0, 2)
    assert "idleReplicaCount" not in scaled_object("one-tenant")


@pytest.mark.parametrize("name", ["filmgate-{model}.fifo", "filmgate-{route}-{model}.fifo"])
def test_the_sqs_trigger_reads_the_queue_that_wakes_the_workers(name):
    """SQS allows no dots in a name, and names of models have them."""
    account = "https://sqs.eu-central-1.amazonaws.com/123456789012/"
    chosen = {"settings.queue.waker": f"sqs://{name}", "keda.sqsQueueUrl": account + name}
    options = [part for key, value in chosen.items() for part in ("--set-literal", f"{key}={value}")]
    rendered = render_values("sqs", *options)
    (trigger,) = rendered.one("ScaledObject")["spec"]["triggers"]
    environ = environment(rendered.pods["films-worker-wan"]["spec"]["containers"][0])
    waker = parse_address(read_settings(environ)[0].queue.waker)
    assert trigger["metadata"]["queueURL"] == account + fill_name(waker, Route.GPU, "wan2.1-t2v-14b")
