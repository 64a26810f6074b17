"""The alerts as alarms of CloudWatch."""

import json
import re
from io import StringIO

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from filmgate.jobs import JobState, Route
from filmgate.slo.alerts import TENANT_ALERT, WORKER_ALERT
from filmgate.slo.cloudwatch import alarm_documents, conditions
from filmgate.slo.gpu_alerts import all_alerts
from filmgate.telemetry.emf import EmfWriter
from filmgate.telemetry.metrics import JOBS, METRICS, WORKERS, Kind

ALERTS = all_alerts()
BY_NAME = {metric.name: metric for metric in METRICS}
CONDITIONS = conditions(900.0)
QUERY = re.compile(r'SELECT [A-Z]+\("(\w+)"\) FROM (?:SCHEMA\("Filmgate"(.*?)\)|"Filmgate")(?: WHERE (.+))?')
TERM = re.compile(r"(\w+) (!?=) '([^']+)'")


def test_every_alert_that_cloudwatch_can_express_is_an_alarm():
    topic = "arn:aws:sns:eu-central-1:1:pages"
    alarms = alarm_documents(900.0, "https://runbooks.example", topic)
    assert [alarm["AlarmName"] for alarm in alarms] == [
        alert.name for alert in ALERTS if alert.name not in {TENANT_ALERT, WORKER_ALERT}
    ]
    used = set(re.findall(r"filmgate_[a-z0-9_]+", str(alarms)))
    assert used <= BY_NAME.keys()
    for alarm in alarms:
        assert [query["Id"] for query in alarm["Metrics"] if query["ReturnData"]] == ["result"]
        assert "https://runbooks.example/" in alarm["AlarmDescription"]


class Everything(Collector):
    """Every metric, with one series whose labels have their own names as values."""

    def __init__(self):
        self.total = 0

    def collect(self):
        self.total += 1
        for metric in METRICS:
            if metric.kind is Kind.HISTOGRAM:
                family = metric.histogram()
                buckets = [("1", self.total), ("+Inf", self.total)]
                family.add_metric(metric.labels, buckets, sum_value=self.total)
            else:
                family = metric.gauge() if metric.kind is Kind.GAUGE else metric.counter()
                family.add_metric(metric.labels, self.total)
            yield family


def dimensions_written():
    """The sets of dimensions that the writer gives to each metric."""
    registry, stream = CollectorRegistry(), StringIO()
    registry.register(Everything())
    writer = EmfWriter(registry, stream)
    writer.write()
    writer.write()
    found = {}
    for line in stream.getvalue().splitlines():
        (directive,) = json.loads(line)["_aws"]["CloudWatchMetrics"]
        for metric in directive["Metrics"]:
            found[metric["Name"]] = [tuple(names) for names in directive["Dimensions"]]
    return found


WRITTEN = dimensions_written()
PARTS = [part for condition in CONDITIONS.values() for part in condition.parts.values()]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_every_part_of_an_alarm_reads_dimensions_that_are_written(part):
    """A metric is written with all its labels and without any: a query must choose, or it counts twice."""
    if not isinstance(part, str):
        assert () in WRITTEN[part["Metric"]["MetricName"]]
        return
    name, schema, where = QUERY.fullmatch(part).groups()
    names = tuple(re.findall(r'"(\w+)"', schema or ""))
    assert names == max(WRITTEN[name], key=len)
    terms = where.split(" AND ") if where else []
    for label, _, value in (TERM.fullmatch(term).groups() for term in terms):
        assert label in names
        closed = {"route": set(Route), "state": set(JobState), "task": {"audit checkpoint"}}
        assert value in closed.get(label, set(re.findall(r"[\w-]+", BY_NAME[name].help)))


def test_jobs_and_workers_of_a_provider_do_not_count_as_those_of_gpus():
    """Jobs that wait for the provider need no GPU."""
    queries = [part for part in PARTS if JOBS.name in str(part) or WORKERS.name in str(part)]
    assert len(queries) == 4
    assert all("route = 'gpu'" in query for query in queries)
