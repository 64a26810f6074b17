"""The metrics of the queue."""

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from filmgate.errors import QueueUnavailable
from filmgate.jobs import Route, RouteReason, Routing, TenantId, WorkerId
from filmgate.providers.breaker import Breaker, BreakerCollector
from filmgate.providers.circuit import Outcome, Signal
from filmgate.scheduling.base import Offer
from filmgate.scheduling.durations import COLD_START, KEEP_SECONDS, MODEL_LOAD, delete_old, record_start
from filmgate.scheduling.metrics import QueueCollector, QueueTerms
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from filmgate.settings import RoutingSettings
from filmgate.telemetry.metrics import METRICS
from tests.tickets import PROMPT, RESULT, make_offer, make_ticket

ENDED, WHICH = "filmgate_jobs_ended_total", 'model="flipbook"'
VERSION = "ab12ab12ab12"
LATENCY = f'{WHICH},route="gpu",tenant="acme",version="{VERSION}"'


TERMS = QueueTerms(promise_seconds=900.0, usd_per_gpu_hour=3.6, max_tenants=2)


def scrape(reader, clocks, terms=TERMS):
    registry = CollectorRegistry()
    registry.register(QueueCollector(reader, lambda: clocks.wall, terms))
    return generate_latest(registry).decode()


def values(text, name):
    """The samples of one metric: value by the values of its labels, in the order of their names."""
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]
    return {
        tuple(value for label, value in sorted(sample.labels.items()) if label != "le"): sample.value
        for sample in samples
    }


def test_a_scrape_has_states_reasons_backlog_waits_and_gpu_seconds(bench, queue, reader, clocks):
    """Latency, errors and cost by model, version, route and tenant."""
    status = WorkerStatus(WorkerId("worker-1"), Route.GPU, ("flipbook",))
    offer = make_offer(versions={"flipbook": "ab12" * 16})
    queue.enqueue(make_ticket())
    clocks.pass_time(4)
    queue.complete(queue.lease(offer), RESULT)
    queue.cancel(TenantId("acme"), queue.enqueue(make_ticket()).id)
    queue.enqueue(make_ticket("globex", gpu_seconds=12.5))
    clocks.pass_time(6)
    WorkerRegistry(bench.database).heartbeat(status)
    text = scrape(reader, clocks)
    for line in (
        'filmgate_jobs{model="flipbook",route="gpu",state="queued",tenant="globex"} 1.0',
        'filmgate_backlog_seconds{model="flipbook",route="gpu",tenant="globex"} 12.5',
        "filmgate_oldest_queued_seconds 6.0",
        "filmgate_promise_seconds 900.0",
        'filmgate_workers{model="flipbook",route="gpu"} 1.0',
        f'{ENDED}{{{WHICH},reason="",route="gpu",state="completed",tenant="acme",version="{VERSION}"}} 1.0',
        f'{ENDED}{{{WHICH},reason="cancelled",route="gpu",state="failed",tenant="acme",version=""}} 1.0',
        f'filmgate_gpu_seconds_total{{{WHICH},route="gpu",tenant="acme",version="{VERSION}"}} 8.0',
        f'filmgate_cost_usd_total{{{WHICH},route="gpu",tenant="acme",version="{VERSION}"}} 0.008',
        f'filmgate_cost_usd_per_1000_clips{{{WHICH},route="gpu"}} 8.0',
        f'filmgate_wait_seconds_bucket{{le="2.5",{LATENCY}}} 0.0',
        f'filmgate_wait_seconds_bucket{{le="5.0",{LATENCY}}} 1.0',
        f'filmgate_stage_seconds_sum{{{WHICH},route="gpu",stage="denoise",version="{VERSION}"}} 5.0',
        f"filmgate_job_seconds_count{{{LATENCY}}} 1.0",
    ):
        assert line in text.splitlines()
    assert PROMPT not in text


def test_the_buckets_of_a_scrape_name_a_trace(queue, reader, clocks):
    """From a slow bucket to the trace of a job in it. Only OpenMetrics has exemplars."""
    for wait in (4, 40):
        queue.enqueue(make_ticket())
        clocks.pass_time(wait)
        lease = queue.lease(make_offer())
        queue.complete(lease, RESULT)
    registry = CollectorRegistry()
    registry.register(QueueCollector(reader, lambda: clocks.wall, TERMS))
    text = openmetrics.generate_latest(registry).decode()
    families = {family.name: family for family in openmetrics_families(text)}
    for name, seconds in (("filmgate_wait_seconds", 40.0), ("filmgate_stage_seconds", 5.0)):
        examples = [sample.exemplar for sample in families[name].samples if sample.exemplar]
        last = [each for each in examples if each.labels == {"trace_id": lease.job.trace_id}]
        assert seconds in [each.value for each in last]
    assert "trace_id" not in scrape(reader, clocks)


def test_a_stage_that_a_job_did_not_have_is_not_observed(queue, reader, clocks):
    """A job that loaded no model is no observation of zero seconds."""
    queue.enqueue(make_ticket())
    queue.complete(queue.lease(make_offer()), RESULT)
    stages = {labels[2] for labels in values(scrape(reader, clocks), "filmgate_stage_seconds_count")}
    assert stages == {"text", "denoise", "decode"}


def test_loads_and_cold_starts_of_workers_are_observed(bench, reader, clocks):
    """Real observations, which outlive the worker."""
    record_start(bench.database, MODEL_LOAD, "flipbook", "ab12" * 16, 7.0)
    record_start(bench.database, COLD_START, "flipbook", "ab12" * 16, 40.0)
    text = scrape(reader, clocks)
    assert values(text, "filmgate_model_load_seconds_sum") == {("flipbook", "ab12ab12ab12"): 7.0}
    assert values(text, "filmgate_cold_start_seconds_sum") == {("flipbook", "ab12ab12ab12"): 40.0}
    assert values(text, "filmgate_stage_seconds_sum") == {}


def test_own_and_managed_latency_are_apart_and_a_provider_is_paid_its_price(queue, reader, clocks):
    """p99 of one route says nothing about the other."""
    routing = Routing(RouteReason.DEADLINE, provider="fake", provider_model="veo-9", usd=0.4)
    queue.enqueue(replace(make_ticket(), route=Route.MANAGED, routing=routing))
    managed = Offer(WorkerId("managed"), ("flipbook",), Route.MANAGED)
    queue.complete(queue.lease(managed), RESULT)
    queue.enqueue(make_ticket())
    queue.complete(queue.lease(make_offer()), RESULT)
    text = scrape(reader, clocks)
    counted = values(text, "filmgate_job_seconds_count")
    assert counted == {("flipbook", "managed", "acme", "veo-9"): 1.0, ("flipbook", "gpu", "acme", ""): 1.0}
    assert values(text, "filmgate_cost_usd_per_1000_clips")["flipbook", "managed"] == 400.0


def test_with_many_tenants_the_histograms_have_no_tenant(queue, reader, clocks):
    for tenant in ("acme", "globex", "initech"):
        queue.enqueue(make_ticket(tenant))
        queue.complete(queue.lease(make_offer()), RESULT)
    counted = values(scrape(reader, clocks), "filmgate_job_seconds_count")
    assert counted == {("flipbook", "gpu", "", ""): 3.0}


def test_the_buckets_of_a_sum_over_tenants_name_the_newest_trace(queue, reader, clocks):
    for tenant in ("acme", "globex", "initech"):
        queue.enqueue(make_ticket(tenant))
        clocks.pass_time(4)
        lease = queue.lease(make_offer())
        queue.complete(lease, RESULT)
    waits = [each for each in reader.statistics(max_tenants=2).histograms if each.series.kind == "wait"]
    assert [example.trace_id for each in waits for example in each.examples.values()] == [lease.job.trace_id]


def test_the_durations_of_a_version_are_deleted_when_no_tenant_has_used_it_for_long(
    bench, queue, reader, clocks
):
    def render(tenant, version):
        queue.enqueue(make_ticket(tenant))
        queue.complete(queue.lease(make_offer(versions={"flipbook": version})), RESULT)

    for tenant, version in (("acme", "old"), ("acme", "kept"), ("globex", "kept")):
        render(tenant, version)
    clocks.pass_time(KEEP_SECONDS - 60)
    render("globex", "kept")
    before = scrape(reader, clocks)
    clocks.pass_time(120)
    delete_old(bench.database)
    counted = values(scrape(reader, clocks), "filmgate_job_seconds_count")
    assert counted == {("flipbook", "gpu", "acme", "kept"): 1.0, ("flipbook", "gpu", "globex", "kept"): 2.0}
    assert values(before, "filmgate_job_seconds_count").keys() - counted.keys() == {
        ("flipbook", "gpu", "acme", "old")
    }


def test_the_phase_of_a_breaker_is_exported(bench):
    settings = RoutingSettings(failures_to_open=1)
    breaker, former = (Breaker(bench.database, name, settings) for name in ("bedrock", "http"))
    former.record(Outcome(Signal.FAILED))  # its provider was removed while it was open: nothing closes it
    registry = CollectorRegistry()
    registry.register(BreakerCollector(bench.database, "bedrock"))

    def phases():
        samples = values(generate_latest(registry).decode(), "filmgate_breaker_phase")
        return {phase for (phase, _provider), value in samples.items() if value}

    assert phases() == set()
    breaker.record(Outcome(Signal.ANSWERED))
    assert phases() == {"closed"}
    breaker.record(Outcome(Signal.FAILED))
    assert phases() == {"open"}


def test_everything_that_is_exported_is_in_the_list(queue, reader, clocks):
    queue.enqueue(make_ticket())
    queue.complete(queue.lease(make_offer()), RESULT)
    queue.enqueue(make_ticket())
    listed = {metric.name: set(metric.labels) for metric in METRICS}
    for family in text_string_to_metric_families(scrape(reader, clocks)):
        name = family.name if family.name in listed else f"{family.name}_total"
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == listed[name]


class DownReader:
    def backlog(self):
        raise QueueUnavailable("down")


def test_a_scrape_reports_that_the_database_is_down(clocks):
    assert scrape(DownReader(), clocks).splitlines()[-1] == "filmgate_queue_up 0.0"
