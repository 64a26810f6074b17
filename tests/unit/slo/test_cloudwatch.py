"""The alerts as alarms of CloudWatch."""

import json
import re
from io import StringIO

from prometheus_client import CollectorRegistry

from filmgate.slo.alerts import TENANT_ALERT
from filmgate.slo.cloudwatch import alarm_documents, conditions
from filmgate.slo.gpu_alerts import all_alerts
from filmgate.telemetry.emf import EmfWriter
from filmgate.telemetry.metrics import GPU_CLOCK_EVENT, METRICS

ALERTS = all_alerts()


def test_every_alert_is_an_alarm_of_cloudwatch():
    topic = "arn:aws:sns:eu-central-1:1:pages"
    alarms = alarm_documents(900.0, "https://runbooks.example", topic, ["acme", "globex"])
    names = [alarm["AlarmName"] for alarm in alarms]
    by_tenant = [f"{TENANT_ALERT}-acme", f"{TENANT_ALERT}-globex"]
    assert set(names) == {alert.name for alert in ALERTS} - {TENANT_ALERT} | set(by_tenant)
    assert len(names) == len(ALERTS) + 1
    assert "tenant = 'globex'" in json.dumps(alarms[names.index(by_tenant[1])])
    used = set(re.findall(r"filmgate_[a-z0-9_]+", str(alarms)))
    assert used <= {metric.name for metric in METRICS}
    for alarm in alarms:
        assert [query["Id"] for query in alarm["Metrics"] if query["ReturnData"]] == ["result"]
        assert "https://runbooks.example/" in alarm["AlarmDescription"]


def test_alarms_query_the_dimensions_that_are_written():
    """A metric is written with all its labels and without any: a query must choose, or it counts twice."""
    registry, stream = CollectorRegistry(), StringIO()
    GPU_CLOCK_EVENT.live_gauge(registry).labels("GPU-1", "hw_thermal").set(1)
    EmfWriter(registry, stream).write()
    written = re.search(r'"Dimensions": \[\[\], \[([^]]+)\]\]', stream.getvalue())[1]
    query = conditions(900.0)["FilmgateGpuThrottled"].parts["slow"]
    assert f'FROM SCHEMA("Filmgate", {written})' in query
