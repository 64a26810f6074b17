"""`plan rightsize` from CSV files, CloudWatch, Prometheus, and the workers of this installation."""

import json
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from filmgate.catalog.gpus import GIB
from filmgate.catalog.loader import load_catalog
from filmgate.cli.plan.metrics.cloudwatch import Device, MetricSource, read_cloudwatch
from filmgate.cli.plan.metrics.csv_file import read_csv_metrics
from filmgate.cli.plan.metrics.prometheus import read_prometheus
from filmgate.database import open_database
from filmgate.errors import RunError, UsageError
from filmgate.jobs import WorkerId
from filmgate.planner.rightsize import plan_rightsize
from filmgate.scheduling.history import DeviceSeconds, History, record_device
from filmgate.settings import QueueSettings
from tests.aws import client
from tests.http_server import Handler, HttpServer

NOW = datetime.now(UTC).replace(second=0, microsecond=0)


def put(cloudwatch, namespace, metric, dimensions, value):
    points = [
        {
            "MetricName": metric,
            "Dimensions": [{"Name": name, "Value": text} for name, text in dimensions.items()],
            "Timestamp": NOW - timedelta(minutes=5 * i),
            "Value": value,
        }
        for i in range(1, 21)
    ]
    cloudwatch.put_metric_data(Namespace=namespace, MetricData=points)


def test_an_idle_endpoint_is_too_big_and_the_refusals_of_smaller_machines_are_shown(aws_url):
    """GPUUtilization of 15 % in /aws/sagemaker/Endpoints; g4dn and inf2 have an answer."""
    cloudwatch, source = client("cloudwatch", aws_url), MetricSource.parse("sagemaker:clips/blue")
    for metric, value in (("GPUUtilization", 15.0), ("GPUMemoryUtilization", 40.0)):
        put(cloudwatch, source.namespace, metric, source.dimensions, value)
    catalog = load_catalog()
    card = catalog.gpu("A10G")
    samples = read_cloudwatch(cloudwatch, source, Device(1, card.memory_bytes), NOW)
    assert set(samples.gpu_share) == {0.15}
    answer = plan_rightsize(samples, catalog, "us-east-1", instance="g5.2xlarge")
    assert answer.fleet.judgement == "too big"
    named = {one.name for one in (*answer.options, *answer.rejected)}
    assert {"g4dn.xlarge", "inf2.xlarge"} <= named
    assert "Neuron" in next(one.reason for one in answer.rejected if one.name == "inf2.xlarge")


def test_the_metrics_of_the_agent_are_percent_and_mebibytes(aws_url):
    cloudwatch, source = client("cloudwatch", aws_url), MetricSource.parse("ec2:i-0abc")
    put(cloudwatch, "CWAgent", "nvidia_smi_utilization_gpu", source.dimensions, 85.0)
    put(cloudwatch, "CWAgent", "nvidia_smi_memory_used", source.dimensions, 20_480.0)
    samples = read_cloudwatch(cloudwatch, source, Device(1, 48 * GIB), NOW)
    assert (samples.gpu_share[0], samples.memory_bytes[0]) == (0.85, 20 * GIB)
    with pytest.raises(
        UsageError, match="has no nvidia_smi_utilization_gpu in CWAgent for InstanceId i-none"
    ):
        read_cloudwatch(cloudwatch, MetricSource.parse("ec2:i-none"), Device(1, GIB), NOW)


@pytest.mark.parametrize("text", ["", "ec2:", "lambda:x", "AWS/SageMaker"])
def test_a_source_that_is_neither_is_refused_with_the_forms(text):
    with pytest.raises(UsageError, match="sagemaker:ENDPOINT/VARIANT or ec2:INSTANCE_ID"):
        MetricSource.parse(text)


@contextmanager
def prometheus(series, status=200):
    """A server that answers query_range with these samples by metric name, for at most 11,000 points."""

    class PrometheusHandler(Handler):
        def do_GET(self):
            asked = {name: value for name, (value,) in parse_qs(urlsplit(self.path).query).items()}
            query, span = asked["query"], float(asked["end"]) - float(asked["start"])
            values = series.get(query.partition("{")[0], [])
            found = [{"metric": {}, "values": [[i, str(value)] for i, value in enumerate(values)]}]
            body = json.dumps({"status": "success", "data": {"result": found if values else []}})
            if status != 200:
                body = json.dumps({"status": "error", "error": "bad_data: parse error"})
            if span / float(asked["step"]) > 11_000:
                return self.answer(400, json.dumps({"status": "error", "error": "maximum resolution"}))
            return self.answer(status, body)

    with closing(HttpServer(PrometheusHandler)) as server:
        yield server.url


def test_activity_from_the_dcgm_exporter_decides():
    """DRAM 90 % active is a load, whatever the utilisation says."""
    series = {
        "DCGM_FI_DEV_GPU_UTIL": [30, 31, 32],
        "DCGM_FI_DEV_FB_USED": [8192, 9000, "NaN"],
        "DCGM_FI_PROF_SM_ACTIVE": [0.2] * 3,
        "DCGM_FI_PROF_DRAM_ACTIVE": [0.9] * 3,
    }
    with prometheus(series) as url:
        samples = read_prometheus(url, '{gpu="0"}', NOW.timestamp())
    assert samples.gpu_share == (0.30, 0.31, 0.32)
    assert samples.memory_bytes == (8 * GIB, 9000 * (1 << 20))
    answer = plan_rightsize(samples, load_catalog(), "us-east-1", instance="g7e.2xlarge")
    assert answer.fleet.judgement == "too small"


def test_the_metrics_of_our_own_workers_come_first():
    series = {"filmgate_gpu_utilization_ratio": [0.5], "DCGM_FI_DEV_GPU_UTIL": [90]}
    with prometheus(series) as url:
        assert read_prometheus(url, "", NOW.timestamp()).gpu_share == (0.5,)


def test_prometheus_answers_for_all_days_that_the_option_allows():
    with prometheus({"filmgate_gpu_utilization_ratio": [0.5]}) as url:
        assert read_prometheus(url, "", NOW.timestamp(), days=63).gpu_share == (0.5,)


def test_a_prometheus_without_samples_or_with_an_error_is_reported():
    with prometheus({}) as url, pytest.raises(UsageError, match="no samples of filmgate_gpu_utilization"):
        read_prometheus(url, "", NOW.timestamp())
    with prometheus({}, status=400) as url, pytest.raises(UsageError, match="bad_data"):
        read_prometheus(url, "{", NOW.timestamp())
    with pytest.raises(RunError, match="does not answer as Prometheus"):
        read_prometheus("http://127.0.0.1:1", "", NOW.timestamp())


def test_the_workers_of_this_installation_are_enough(tmp_path):
    """A worker that is gone counts in the hours in which it ran."""
    database = open_database(QueueSettings(), tmp_path)
    with database.write() as connection:
        now = database.now(connection)
        for hours_ago in range(6):
            at = (now // 3600 - hours_ago) * 3600 - 1
            record_device(connection, WorkerId("gone"), DeviceSeconds(busy=900, idle=900), at)
            record_device(connection, WorkerId("busy"), DeviceSeconds(busy=1800), at)
    assert History(database).busy_shares(7) == [0.75] * 6
    assert History(database).busy_shares(0) == []
    database.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "must have the columns"),
        ("gpu_util,memory_used_mib\nhigh,3\n", "line 2: 'high' is not a number"),
        ("gpu_util,memory_used_mib\nnan,3\n", "line 2: 'nan' is not a number"),
        ("gpu_util,memory_used_mib\n5,-3\n", "line 2: '-3' is not a number"),
    ],
)
def test_invalid_metrics_are_rejected_with_the_line(tmp_path, text, message):
    file = tmp_path / "week.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_csv_metrics(file)


def test_nvidia_smi_column_names_are_accepted(tmp_path):
    file = tmp_path / "week.csv"
    file.write_text("timestamp, utilization.gpu [%], memory.used [MiB]\nx, 55 %, 1024 MiB\n")
    samples = read_csv_metrics(file)
    assert samples.gpu_share == (0.55,)
    assert samples.memory_bytes == (1 << 30,)


@pytest.mark.parametrize("row", ["150,10,0.5", "50,10,90", "-1,10,0.5", "50,inf,0.5"])
def test_metrics_outside_their_range_are_rejected_with_the_line(tmp_path, row):
    file = tmp_path / "week.csv"
    file.write_text(f"gpu_util,memory_used_mib,dram_active\n20,10,0.2\n{row}\n")
    with pytest.raises(UsageError, match="line 3"):
        read_csv_metrics(file)
