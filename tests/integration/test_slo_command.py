"""`filmgate slo` and GET /v1/slo: the same report from the database alone."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from filmgate.cli import app
from filmgate.database import open_database
from filmgate.jobs import JobId, TenantId
from filmgate.scheduling import open_reader
from filmgate.scheduling.metrics import QueueCollector, QueueTerms
from filmgate.settings import QueueSettings, Settings
from filmgate.slo.counts import count_job
from filmgate.slo.gpu_alerts import GpuMetrics
from filmgate.slo.rules import rules_file
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from tests.aws import client as aws_client
from tests.prometheus import check_histories, firing
from tests.service import running, settings_for


def filmgate(folder, *arguments, **environ):
    return CliRunner(env={"FILMGATE_DATA": str(folder), **environ}).invoke(app, ["slo", *arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A server that has finished one clip of the class `short` in time and one of no class late."""
    settings = settings_for(
        tmp_path_factory.mktemp("slo"), slo__classes="short=640x640/2:600@0.9", admission__slo_seconds=1e-6
    )
    with running(settings) as service:
        with service.client() as client:
            for seconds in ("2", "4"):
                client.post("/v1/videos", json={"prompt": "x", "seconds": seconds}).raise_for_status()
                service.hand().make()
        yield service


def test_the_command_and_the_api_report_attainment_by_class(finished):
    with finished.client() as client:
        served = client.get("/v1/slo").json()
        by_tenant = client.get("/v1/slo", params={"by_tenant": True}).json()["data"]
    environ = {"FILMGATE_SLO__CLASSES": "short=640x640/2:600@0.9", "FILMGATE_ADMISSION__SLO_SECONDS": "1e-6"}
    printed = json.loads(filmgate(finished.settings.data, "--json", **environ).stdout)
    assert printed == served
    rows = {row["class"]: (row["jobs"], row["late"], row["attained"]) for row in served["data"]}
    assert rows == {"default": (1, 1, 0.0), "short": (1, 0, 1.0)}
    assert {row["class"]: row["target"] for row in served["data"]} == {"default": 0.95, "short": 0.9}
    assert [row["tenant"] for row in by_tenant] == ["local", "local"]
    assert served["data"][0]["budget_left"] == pytest.approx(-19)
    assert served["data"][0]["burn_rates"]["1h"] == pytest.approx(20)
    lines = filmgate(finished.settings.data, **environ).stdout
    assert "100.00% of 90% in 600 s" in lines
    assert [line for line in lines.splitlines() if len(line) > 80] == []


def test_only_operators_read_the_report(finished):
    with finished.client(finished.add_tenant("eve")) as eve:
        assert eve.get("/v1/slo").status_code == 403


def test_the_objective_of_a_tenant_counts_from_the_next_job_on(finished):
    """Set over the API, stored with the job."""
    with finished.client() as client, finished.client(finished.add_tenant("acme")) as acme:
        objective = {"seconds": 45, "target": 0.999}
        client.patch("/v1/tenants/acme", json={"objective": objective}).raise_for_status()
        video = acme.post("/v1/videos", json={"prompt": "x", "seconds": "2"}).json()
        client.patch("/v1/tenants/acme", json={"objective": {}}).raise_for_status()
    job = finished.services.reader.find(TenantId("acme"), JobId(video["id"]))
    assert (job.slo_class, job.slo_target) == ("short", 0.999)
    assert job.deadline_at - job.created_at == pytest.approx(45)


def test_the_rules_name_the_runbooks_and_the_metrics_of_gpus(tmp_path):
    shown = filmgate(tmp_path, "rules", "--runbooks", "https://wiki/rb")
    assert shown.stdout == rules_file("https://wiki/rb")
    alerts = {rule["alert"]: rule for rule in yaml.safe_load(shown.stdout)["groups"][1]["rules"]}
    assert alerts["FilmgateGpuHot"]["annotations"]["runbook_url"] == "https://wiki/rb/gpu-hot/"
    by_dcgm = filmgate(tmp_path, "rules", "--gpu-metrics", "dcgm").stdout
    assert by_dcgm == rules_file(gpu_metrics=GpuMetrics.DCGM)
    wrong = filmgate(tmp_path, "rules", "--gpu-metrics", "nvidia-smi")
    assert (wrong.exit_code, wrong.exception.option) == (1, "--gpu-metrics")


def test_dashboards_are_written_one_file_each(tmp_path):
    shown = filmgate(tmp_path, "dashboards", "-o", str(tmp_path / "grafana"))
    files = shown.stdout.split()
    assert len(files) == 5
    documents = json.loads(filmgate(tmp_path, "dashboards").stdout)
    written = sorted((tmp_path / "grafana").iterdir())
    assert [json.loads(file.read_text())["uid"] for file in written] == sorted(documents)


def test_cloudwatch_takes_every_alarm(aws_url, tmp_path):
    topic = "arn:aws:sns:eu-central-1:123456789012:pages"
    shown = filmgate(tmp_path, "alarms", "--topic", topic)
    alarms = json.loads(shown.stdout)["alarms"]
    cloudwatch = aws_client("cloudwatch", aws_url)
    for alarm in alarms:
        cloudwatch.put_metric_alarm(**alarm)
    found = cloudwatch.describe_alarms(AlarmNamePrefix="Filmgate")["MetricAlarms"]
    assert {alarm["AlarmName"] for alarm in found} == {alarm["AlarmName"] for alarm in alarms}
    assert all(alarm["AlarmActions"] == [topic] for alarm in found)


OUTAGES = {"two minutes": range(60, 62), "five minutes": range(125, 130)}


def test_a_replay_of_an_outage_of_five_minutes_fires_the_hourly_alert_once(tmp_path):
    """Through the counters of the database and the exporter; one of two minutes does not fire it.

    Four jobs a minute end in time, and all are late during an outage: 3.3 % and 8.3 % of an hour.
    """
    database = open_database(QueueSettings(), tmp_path)
    reader = open_reader(database, DataKeys(FileKeyring(tmp_path / "keys")))
    terms = QueueTerms.of(Settings())
    series: dict[str, list[str]] = {}
    for minute in range(200):
        is_late = any(minute in outage for outage in OUTAGES.values())
        with database.write(is_durable=False) as connection:
            for _ in range(4):
                row = {"tenant_id": "acme", "slo_class": None, "slo_target": 0.95}
                count_job(connection, row, is_late=is_late, now=60.0 * minute)
        for family in QueueCollector(reader, lambda: 0.0, terms).collect():
            for sample in family.samples if family.name.startswith("filmgate_slo_") else ():
                labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                series.setdefault(f"{sample.name}{{{labels}}}", []).append(f"{sample.value:g}")
    database.close()
    fires = firing("FilmgateLateJobs")
    expected = {55: 0, 65: 0, 120: 0, 126: 0, 131: 1, 180: 1, 195: 0}
    checks = [(f"{minute}m", fires, value) for minute, value in expected.items()]
    checks.append(("199m", f"changes({fires}[3h:1m])", 2))
    history = {name: " ".join(values) for name, values in series.items()}
    code, output = check_histories(tmp_path, rules_file(), [("1m", history, checks)])
    assert code == 0, output
