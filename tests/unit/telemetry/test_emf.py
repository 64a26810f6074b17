"""Metrics in CloudWatch's embedded metric format."""

import json
from io import StringIO

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from filmgate.telemetry.emf import EmfWriter


class Written:
    """A registry, its writer, and what was written since the last look."""

    def __init__(self):
        self.registry, self.stream = CollectorRegistry(), StringIO()
        self.writer = EmfWriter(self.registry, self.stream, clock=lambda: 1700000000.5)

    def write(self):
        self.stream.truncate(0)
        self.stream.seek(0)
        self.writer.write()
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def written():
    return Written()


def test_a_gauge_has_its_labels_as_dimensions_and_none_of_the_tenants(written):
    jobs = Gauge("filmgate_jobs", "Jobs.", ("model", "tenant"), registry=written.registry)
    jobs.labels("wan", "acme").set(2)
    jobs.labels("wan", "globex").set(3)
    Gauge("process_open_fds", "Not ours.", registry=written.registry)
    (line,) = written.write()
    assert line == {
        "_aws": {
            "Timestamp": 1700000000500,
            "CloudWatchMetrics": [
                {
                    "Namespace": "Filmgate",
                    "Dimensions": [[], ["model"]],
                    "Metrics": [{"Name": "filmgate_jobs", "Unit": "None"}],
                }
            ],
        },
        "model": "wan",
        "filmgate_jobs": 5.0,
    }


def test_a_counter_is_written_as_its_increase(written):
    ended = Counter("filmgate_jobs_ended", "Ended.", registry=written.registry)
    ended.inc(7)
    assert written.write() == [], "what was counted before the first line is unknown"
    ended.inc(3)
    (line,) = written.write()
    assert line["filmgate_jobs_ended_total"] == 3.0
    assert line["_aws"]["CloudWatchMetrics"][0]["Metrics"][0]["Unit"] == "Count"
    (line,) = written.write()
    assert line["filmgate_jobs_ended_total"] == 0.0


class Outage(Collector):
    """Counters of the database, which are missing while it is down."""

    def __init__(self):
        self.is_up, self.counts = True, {}

    def collect(self):
        if self.is_up:
            ended = CounterMetricFamily("filmgate_jobs_ended", "Ended.", labels=("model", "tenant"))
            for labels, value in self.counts.items():
                ended.add_metric(labels, value)
            yield ended


def test_counters_that_are_missing_during_an_outage_do_not_jump_after_it(written):
    database = Outage()
    written.registry.register(database)
    database.is_up, database.counts = False, {("wan", "acme"): 1000}
    assert written.write() == []
    database.is_up = True
    assert written.write() == [], "counted before the first line"
    database.is_up = False
    assert written.write() == []
    database.is_up, database.counts = True, {("wan", "acme"): 1003, ("ltx", "acme"): 2}
    lines = written.write()
    assert {line["model"]: line["filmgate_jobs_ended_total"] for line in lines} == {"wan": 3.0, "ltx": 2.0}


def test_a_counter_that_shrinks_because_a_tenant_was_deleted_does_not_jump(written):
    database = Outage()
    written.registry.register(database)
    database.counts = {("wan", "acme"): 1000, ("wan", "bank"): 500}
    written.write()
    database.counts = {("wan", "bank"): 500}
    assert [line["filmgate_jobs_ended_total"] for line in written.write()] == [0.0]
    database.counts = {("wan", "bank"): 501}
    assert [line["filmgate_jobs_ended_total"] for line in written.write()] == [1.0]


def test_a_histogram_is_written_as_the_bounds_of_its_new_observations(written):
    """CloudWatch computes percentiles from single values."""
    seconds = Histogram("filmgate_job_seconds", "Jobs.", buckets=(1, 10, 90), registry=written.registry)
    seconds.observe(5)
    written.write()
    for value in (0.5, 8, 8, 500):
        seconds.observe(value)
    (line,) = written.write()
    assert line["filmgate_job_seconds"] == [1.0, 10.0, 10.0, 90.0]
    assert written.write() == []


def test_many_observations_are_thinned_out_in_proportion(written):
    seconds = Histogram("filmgate_job_seconds", "Jobs.", buckets=(1, 10), registry=written.registry)
    written.write()
    for number in range(1000):
        seconds.observe(5 if number % 10 else 0.5)
    (line,) = written.write()
    values = line["filmgate_job_seconds"]
    assert (len(values), values.count(1.0)) == (100, 10)


def test_thinned_out_observations_keep_the_slowest(written):
    bounds = [float(bound) for bound in range(1, 16)]
    seconds = Histogram("filmgate_job_seconds", "Seconds.", registry=written.registry, buckets=bounds)
    written.write()
    for bound in bounds:
        for _ in range(11):
            seconds.observe(bound)
    (line,) = written.write()
    values = line["filmgate_job_seconds"]
    assert len(values) == 100
    assert {values.count(bound) for bound in bounds} == {6, 7}
