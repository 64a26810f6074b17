"""The rules of Prometheus on simulated histories: every alert fires when it should, and only then."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from filmgate.slo.alerts import SLO_ALERTS, TENANT_ALERT
from filmgate.slo.dashboards import all_dashboards
from filmgate.slo.gpu_alerts import GpuMetrics, all_alerts, gpu_alerts
from filmgate.slo.recording import RECORDINGS, WINDOWS
from filmgate.slo.rules import Release, rules_file, to_yaml
from filmgate.telemetry.metrics import METRICS, Kind
from tests.prometheus import check_histories, dashboard_queries, firing, promtool

ROOT = Path(__file__).parents[3]
ALERTS = all_alerts()
RULES = rules_file()
DCGM_RULES = rules_file(gpu_metrics=GpuMetrics.DCGM)
SECTIONS = ("Meaning", "Impact", "Diagnosis", "Mitigation", "How to test it")

GPU = '{instance="node-1:9464",gpu="GPU-1"}'
WORKER = '{job="worker",instance="node-1:9464"}'


def slo(result, instance="a", tenant="acme"):
    labels = f'instance="{instance}",tenant="{tenant}",class="default"'
    if result == "allowed":
        return f"filmgate_slo_late_allowed_total{{{labels}}}"
    return f'filmgate_slo_jobs_total{{{labels},result="{result}"}}'


def bucket(le):
    labels = 'model="wan",version="1",route="gpu",tenant="acme"'
    return f'filmgate_job_seconds_bucket{{{labels},le="{le}"}}'


def jobs(state):
    return f'filmgate_jobs{{state="{state}",route="gpu",model="wan",tenant="acme"}}'


def throttles(service, values):
    return {f'filmgate_downstream_throttles_total{{service="{service}"}}': values}


def latency(slow):
    """Per minute 100 jobs within 60 s, and `slow` more within 300 s."""
    return {
        bucket("60"): "0+100x120",
        bucket("300"): f"0+{100 + slow}x120",
        bucket("+Inf"): f"0+{100 + slow}x120",
    }


def per_minute(good, late, target=0.95, tenant="acme"):
    """Jobs per minute, and how many of them may be late."""
    counts = {"good": good, "late": late, "allowed": round((good + late) * (1 - target), 9)}
    return {slo(name, tenant=tenant): f"0+{count}x150" for name, count in counts.items()}


def gpu(name, values, labels=GPU):
    return {f"filmgate_gpu_{name}{labels}": values}


WAITS = {jobs("queued"): "3x60"}
TOTAL = gpu("memory_total_bytes", "100x60")
BACKLOG = 'filmgate_backlog_seconds{route="gpu",model="wan",tenant="acme"}'
WORKERS = 'filmgate_workers{route="gpu",model="wan"}'
ECC = '{instance="node-1:9464",gpu="GPU-1",kind="%s",counter="volatile"}'
EVENT = '{instance="node-1:9464",gpu="GPU-1",reason="%s"}'
XID = '{instance="node-1:9464",gpu="GPU-1",xid="79"}'
FAILURES = 'filmgate_task_failures_total{task="audit checkpoint"}'
EXPIRY = "filmgate_tls_certificate_expiry_timestamp_seconds"
PHASE = 'filmgate_breaker_phase{provider="bedrock",phase="%s"}'

# By alert: the histories in which it fires, and those in which it must stay quiet, one value per minute.
HISTORIES = {
    "FilmgateLateJobs": (per_minute(90, 10), per_minute(96, 4)),
    # In one class: 2 % late is too much for one tenant, and 8 % is not for the other.
    "FilmgateTenantLateJobs": (
        per_minute(98, 2, 0.99, "strict") | per_minute(92, 8, 0.9),
        per_minute(98, 2) | per_minute(92, 8, 0.9, "loose"),
    ),
    "FilmgateErrorBudgetFastBurn": (per_minute(10, 90), per_minute(80, 20)),
    "FilmgateErrorBudgetSlowBurn": (per_minute(80, 20), per_minute(96, 4)),
    "FilmgateTailLatency": (latency(5), latency(0)),
    "FilmgateBacklogOverPromise": (
        {BACKLOG: "4000x60", WORKERS: "2x60", "filmgate_promise_seconds": "900x60"},
        {BACKLOG: "1700x60", WORKERS: "2x60", "filmgate_promise_seconds": "900x60"},
    ),
    "FilmgateNoWorker": (
        WAITS | {'filmgate_workers{route="gpu",model="other"}': "1x60"},
        WAITS | {WORKERS: "1x60"},
    ),
    "FilmgateWorkerSilent": (
        {f"up{WORKER}": "1x10 0x50", f"filmgate_worker_ready{WORKER}": "1x10"},
        {f"up{WORKER}": "1x60", f"filmgate_worker_ready{WORKER}": "1x60", 'up{job="other"}': "0x60"},
    ),
    "FilmgateDatabaseDown": ({"filmgate_queue_up": "0x60"}, {"filmgate_queue_up": "1x60"}),
    # Every third minute, a probe waits for a provider that does not answer.
    "FilmgateBreakerOpen": (
        {PHASE % "closed": "0x60", PHASE % "open": "1 1 0 " * 20, PHASE % "half_open": "0 0 1 " * 20},
        {PHASE % "closed": "0x2 1x60", PHASE % "open": "1x2 0x60"},
    ),
    "FilmgateStoreThrottled": (
        throttles("s3", "0+12x60"),
        throttles("s3", "0+1x60") | throttles("sqs", "0+99x60"),
    ),
    "FilmgateKmsThrottled": (
        throttles("kms", "0+12x60"),
        throttles("kms", "7x60") | throttles("s3", "0+99x60"),
    ),
    "FilmgateCertificateExpiry": ({EXPIRY: "1200000x60"}, {EXPIRY: "1300000x60"}),
    "FilmgateAuditCheckpointFailing": ({FAILURES: "0+1x60"}, {FAILURES: "5x60"}),
    "FilmgateGpuMemoryHigh": (
        gpu("memory_used_bytes", "86x60") | TOTAL,
        gpu("memory_used_bytes", "85x60") | TOTAL,
    ),
    "FilmgateGpuIdle": (
        gpu("utilization_ratio", "0.2x60") | WAITS,
        gpu("utilization_ratio", "0.2x60") | {jobs("queued"): "0x60", jobs("running"): "1x60"},
    ),
    "FilmgateGpuHot": (gpu("temperature_celsius", "83x60"), gpu("temperature_celsius", "82x60")),
    "FilmgateGpuPowerLimit": (
        gpu("power_watts", "699x60") | gpu("power_limit_watts", "700x60"),
        gpu("power_watts", "600x60") | gpu("power_limit_watts", "700x60"),
    ),
    "FilmgateGpuThrottled": (
        gpu("clock_event", "1x60", EVENT % "hw_thermal"),
        gpu("clock_event", "1x60", EVENT % "power_cap"),
    ),
    "FilmgateGpuDoubleBitError": (
        gpu("ecc_errors_total", "0x20 1x40", ECC % "double_bit"),
        gpu("ecc_errors_total", "0+9x60", ECC % "single_bit"),
    ),
    "FilmgateGpuRemapFailure": (gpu("row_remap_failure", "1x60"), gpu("row_remap_failure", "0x60")),
    "FilmgateGpuXid": (gpu("xid_errors_total", "_x25 1x60", XID), gpu("xid_errors_total", "1x60", XID)),
}
# When to look, where half an hour is not enough for the windows of the rule.
TIMES = {"FilmgateErrorBudgetSlowBurn": "130m", "FilmgateTailLatency": "90m"}


def test_every_alert_has_a_firing_and_a_quiet_history():
    assert HISTORIES.keys() == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("rules", [RULES, DCGM_RULES], ids=["filmgate", "dcgm"])
def test_promtool_accepts_the_rules(tmp_path, rules):
    (tmp_path / "rules.yml").write_text(rules)
    code, output = promtool("check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rules.yml")
    assert code == 0, output
    assert f"{len(RECORDINGS) + len(ALERTS)} rules found" in output


def pack(value, all_histories):
    """Tests of all histories, with as many in one test as have no metric in common: promtool is faster."""
    worlds = []
    for name, histories in all_histories.items():
        history, at = histories[0 if value else 1], TIMES.get(name, "30m")
        used = {series.partition("{")[0] for series in history}
        check = (at, firing(name), value)
        fitting = next((world for world in worlds if used.isdisjoint(world[0]) and world[1] == at), None)
        if fitting is None:
            worlds.append((used, at, dict(history), [check]))
        else:
            fitting[0].update(used)
            fitting[2].update(history)
            fitting[3].append(check)
    return [("1m", series, checks) for _, _, series, checks in worlds]


def of_release(namespace, history):
    """The same history with the label that a PodMonitor adds."""
    labelled = {}
    for series, values in history.items():
        name, _, labels = series.partition("{")
        labelled[f'{name}{{namespace="{namespace}",{labels.rstrip("}")}}}'] = values
    return labelled


def test_each_alert_fires_for_the_release_in_trouble_alone(tmp_path):
    """Two releases in one Prometheus: in every history one must fire, and the other stay quiet."""
    films, other = (rules_file(release=Release({"namespace": name})) for name in ("films", "other"))
    both = films + other.removeprefix("groups:\n").replace('name: "filmgate-', 'name: "other-')
    mixed = {
        name: (of_release("films", bad) | of_release("other", good),)
        for name, (bad, good) in HISTORIES.items()
    }
    tests = [
        (
            interval,
            series,
            [
                (at, query.replace("ALERTS{", f'ALERTS{{namespace="{name}",'), value)
                for at, query, _ in checks
                for name, value in (("films", 1), ("other", 0))
            ],
        )
        for interval, series, checks in pack(1, mixed)
    ]
    code, output = check_histories(tmp_path, both, tests)
    assert code == 0, output


@pytest.mark.parametrize("gpu_metrics", GpuMetrics)
def test_every_selector_of_a_release_has_its_labels(gpu_metrics):
    release = Release({"namespace": "films"}, {"exported_namespace": "films"})
    for group in yaml.safe_load(rules_file("", gpu_metrics, release))["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["namespace"] == "films"
            names = re.findall(r"\b(?:filmgate[_:][\w:]+|DCGM_\w+|up\b)", rule["expr"])
            assert len(names) == rule["expr"].count('namespace="films"}') > 0, rule


def dcgm(**fields):
    """Series of the DCGM exporter with its labels."""
    labels = '{instance="node-1:9400",gpu="0",UUID="GPU-1",Hostname="node-1"}'
    return {f"DCGM_FI_DEV_{name}{labels}": values for name, values in fields.items()}


DCGM_HISTORIES = {
    "FilmgateGpuMemoryHigh": (
        dcgm(FB_USED="86x60", FB_FREE="14x60"),
        dcgm(FB_USED="84x60", FB_FREE="16x60"),
    ),
    "FilmgateGpuIdle": (dcgm(GPU_UTIL="29x60") | WAITS, dcgm(GPU_UTIL="31x60") | WAITS),
    "FilmgateGpuHot": (dcgm(GPU_TEMP="83x60"), dcgm(GPU_TEMP="82x60")),
    "FilmgateGpuPowerLimit": (
        dcgm(POWER_USAGE="699x60", ENFORCED_POWER_LIMIT="700x60"),
        dcgm(POWER_USAGE="600x60", ENFORCED_POWER_LIMIT="700x60"),
    ),
    # 0x44: the power cap and the hardware's thermal slowdown; 0x15: idle, power cap and sync boost.
    "FilmgateGpuThrottled": (
        dcgm(CLOCKS_EVENT_REASONS="68x60"),
        dcgm(CLOCKS_EVENT_REASONS="21x60"),
    ),
    "FilmgateGpuDoubleBitError": (dcgm(ECC_DBE_VOL_TOTAL="0x20 1x40"), dcgm(ECC_SBE_VOL_TOTAL="0+9x60")),
    "FilmgateGpuRemapFailure": (dcgm(ROW_REMAP_FAILURE="1x60"), dcgm(ROW_REMAP_FAILURE="0x60")),
    "FilmgateGpuXid": (dcgm(XID_ERRORS="0x25 79x35"), dcgm(XID_ERRORS="0x5 31x60")),
}


MIG_BUSY = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{instance="node-1:9400",gpu="0",UUID="GPU-1",GPU_I_ID="3"}'


@pytest.mark.parametrize("value", [1, 0], ids=["fires", "stays quiet"])
def test_an_idle_mig_device_is_found_by_the_profiling_fields_of_dcgm(tmp_path, value):
    """DCGM, as NVML, has no utilisation of a GPU in MIG mode."""
    histories = {"FilmgateGpuIdle": ({MIG_BUSY: "0.29x60"} | WAITS, {MIG_BUSY: "0.31x60"} | WAITS)}
    code, output = check_histories(tmp_path, DCGM_RULES, pack(value, histories))
    assert code == 0, output


@pytest.mark.parametrize("value", [1, 0], ids=["fires", "stays quiet"])
def test_each_alert_on_gpus_with_the_metrics_of_dcgm(tmp_path, value):
    assert DCGM_HISTORIES.keys() == {alert.name for alert in gpu_alerts(GpuMetrics.DCGM)}
    code, output = check_histories(tmp_path, DCGM_RULES, pack(value, DCGM_HISTORIES))
    assert code == 0, output


def test_only_heat_and_hardware_are_throttling_for_dcgm(tmp_path):
    """Beside another bit, as idle or a power cap are."""
    fires = firing("FilmgateGpuThrottled")
    bits = {0x8: 1, 0x20: 1, 0x40: 1, 0x80: 1, 0x1: 0, 0x2: 0, 0x4: 0, 0x10: 0}
    tests = [
        ("1m", dcgm(CLOCKS_EVENT_REASONS=f"{bit | 0x100}x30"), [("10m", fires, value)])
        for bit, value in bits.items()
    ]
    code, output = check_histories(tmp_path, DCGM_RULES, tests)
    assert code == 0, output


def test_an_xid_that_the_exporter_shows_from_its_start_fires_and_ends(tmp_path):
    history, fires = dcgm(XID_ERRORS="_x25 31x60"), firing("FilmgateGpuXid")
    code, output = check_histories(
        tmp_path, DCGM_RULES, [("1m", history, [("30m", fires, 1), ("60m", fires, 0)])]
    )
    assert code == 0, output


def test_alerts_with_the_metrics_of_dcgm_are_the_same_otherwise():
    by_dcgm = all_alerts(GpuMetrics.DCGM)
    assert [replace(alert, expression="") for alert in by_dcgm] == [
        replace(alert, expression="") for alert in ALERTS
    ]
    used = set(re.findall(r"DCGM_[A-Z_]+", DCGM_RULES))
    listed = set(re.findall(r"^DCGM_[A-Z_]+", (ROOT / "deploy/dcgm-counters.csv").read_text(), re.MULTILINE))
    assert used <= listed
    assert "filmgate_gpu_" not in DCGM_RULES


def test_replicas_report_the_same_jobs_once(tmp_path):
    """4 % late, reported by two replicas of which one restarted: still 4 %."""
    per = {"good": 96, "late": 4, "allowed": 5}
    history = {slo(name): f"0+{count}x90" for name, count in per.items()}
    history |= {slo(name, "b"): f"_x30 {30 * count}+{count}x60" for name, count in per.items()}
    checks = [
        ("80m", 'sum(round(filmgate:slo_late:ratio_rate1h{class="default"}, 0.01))', 0.04),
        ("80m", 'sum(round(filmgate:slo_burn:rate1h{class="default"}, 0.1))', 0.8),
    ]
    code, output = check_histories(tmp_path, RULES, [("1m", history, checks)])
    assert code == 0, output


def test_a_burn_rate_counts_with_the_target_of_each_tenant(tmp_path):
    """3 % late of two tenants: 3 times too many for 99 %, a third of what 91 % allows; 0.6 for both."""
    history = per_minute(97, 3, 0.99, "strict") | per_minute(97, 3, 0.91)
    by_tenant = next(alert for alert in ALERTS if alert.name == TENANT_ALERT).expression
    checks = [
        ("80m", "sum(round(filmgate:slo_burn:rate1h, 0.01))", 0.6),
        ("80m", firing("FilmgateLateJobs"), 0),
        (
            "80m",
            f'count(({by_tenant}) and on (tenant) label_replace(vector(1), "tenant", "strict", "", ""))',
            1,
        ),
        ("80m", f"count({by_tenant})", 1),
    ]
    code, output = check_histories(tmp_path, RULES, [("1m", history, checks)])
    assert code == 0, output


def exported_names():
    names = {"up"}
    for metric in METRICS:
        histogram = {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
        names |= histogram if metric.kind is Kind.HISTOGRAM else {metric.name}
    return names | RECORDINGS.keys()


@pytest.mark.parametrize(
    ("where", "query"),
    [
        *((a.name, a.expression) for a in ALERTS),
        *RECORDINGS.items(),
        *dashboard_queries(),
    ],
)
def test_no_rule_and_no_panel_names_a_metric_that_the_code_does_not_export(where, query):
    used = set(re.findall(r"filmgate[a-z0-9_:]+", query))
    assert used
    assert used <= exported_names(), where


def test_the_command_shows_the_burn_rate_of_every_window_that_an_alert_reads():
    read = {window for alert in SLO_ALERTS for window in re.findall(r"slo_burn:rate(\w+)", alert.expression)}
    assert read == set(WINDOWS)


def test_labels_in_rules_are_labels_of_the_metrics():
    known = {name for metric in METRICS for name in metric.labels}
    outside = {"instance", "job", "le", "class"}
    for where, query in [*((a.name, a.expression) for a in ALERTS), *dashboard_queries()]:
        groups = re.findall(r"by \(([^)]*)\)", query)
        used = {label.strip() for group in groups for label in group.split(",")}
        assert used <= known | outside, where


def test_promtool_parses_every_query_of_the_dashboards(tmp_path):
    rules = [{"record": f"panel:q{n}", "expr": query} for n, (_, query) in enumerate(dashboard_queries())]
    (tmp_path / "q.yml").write_text(to_yaml({"groups": [{"name": "dashboards", "rules": rules}]}))
    code, output = promtool("check", "rules", tmp_path / "q.yml")
    assert code == 0, output
    assert f"{len(rules)} rules found" in output


def test_there_is_a_dashboard_for_service_model_gpu_tenant_and_cost():
    dashboards = all_dashboards()
    assert list(dashboards) == [f"filmgate-{name}" for name in ("service", "model", "gpu", "tenant", "cost")]
    for dashboard in dashboards.values():
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(ids)) == len(ids) >= 6
        places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dashboard["panels"]]
        assert len(set(places)) == len(places)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_each_alert_has_its_runbook(alert):
    page = (ROOT / "docs/runbooks" / f"{alert.runbook}.md").read_text()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert page.startswith(f"# {alert.name}\n")
    assert tuple(headings) == SECTIONS
    rule = next(
        rule
        for group in yaml.safe_load(RULES)["groups"]
        for rule in group["rules"]
        if rule.get("alert") == alert.name
    )
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{alert.runbook}.md"


def test_no_runbook_is_left_over():
    # No alert can say that a whole zone is gone.
    pages = {path.stem for path in (ROOT / "docs/runbooks").glob("*.md")} - {"index", "zone-failure"}
    assert pages == {alert.runbook for alert in ALERTS}
