"""The metrics of the queue."""

from prometheus_client import CollectorRegistry, generate_latest

from filmgate.errors import QueueUnavailable
from filmgate.jobs import Route, TenantId, WorkerId
from filmgate.scheduling.metrics import QueueCollector
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from tests.tickets import PROMPT, RESULT, make_offer, make_ticket

ENDED, WHICH = "filmgate_jobs_ended_total", 'model="flipbook"'


def scrape(reader, clocks):
    registry = CollectorRegistry()
    registry.register(QueueCollector(reader, lambda: clocks.wall))
    return generate_latest(registry).decode()


def test_a_scrape_has_states_reasons_backlog_waits_and_gpu_seconds(bench, queue, reader, clocks):
    status = WorkerStatus(WorkerId("worker-1"), Route.GPU, ("flipbook",))
    queue.enqueue(make_ticket())
    clocks.pass_time(4)
    queue.complete(queue.lease(make_offer()), RESULT)
    queue.cancel(TenantId("acme"), queue.enqueue(make_ticket()).id)
    queue.enqueue(make_ticket("globex", gpu_seconds=12.5))
    clocks.pass_time(6)
    WorkerRegistry(bench.database).heartbeat(status)
    text = scrape(reader, clocks)
    for line in (
        'filmgate_jobs{model="flipbook",route="gpu",state="queued",tenant="globex"} 1.0',
        'filmgate_backlog_seconds{model="flipbook",route="gpu",tenant="globex"} 12.5',
        "filmgate_oldest_queued_seconds 6.0",
        'filmgate_workers{model="flipbook",route="gpu"} 1.0',
        f'{ENDED}{{{WHICH},reason="",route="gpu",state="completed",tenant="acme"}} 1.0',
        f'{ENDED}{{{WHICH},reason="cancelled",route="gpu",state="failed",tenant="acme"}} 1.0',
        'filmgate_gpu_seconds_total{model="flipbook",route="gpu",tenant="acme"} 8.0',
        'filmgate_wait_seconds_bucket{le="2.5",model="flipbook"} 0.0',
        'filmgate_wait_seconds_bucket{le="5.0",model="flipbook"} 1.0',
        'filmgate_stage_seconds_sum{model="flipbook",stage="denoise"} 5.0',
        'filmgate_job_seconds_count{model="flipbook"} 1.0',
    ):
        assert line in text.splitlines()
    assert PROMPT not in text


class DownReader:
    def backlog(self):
        raise QueueUnavailable("down")


def test_a_scrape_reports_that_the_database_is_down(clocks):
    assert scrape(DownReader(), clocks).splitlines()[-1] == "filmgate_queue_up 0.0"
