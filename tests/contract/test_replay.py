"""The replay starts jobs when Filmgate's queue and its forecast start them."""

import pytest

from filmgate.planner.fleet.keda import KedaSettings
from filmgate.planner.fleet.replay import Job, Machines, replay
from filmgate.scheduling.forecast import forecast
from filmgate.scheduling.workers import WorkerRegistry
from tests.contract.test_forecast import Simulation, Site, emptied
from tests.tickets import make_ticket

WORKERS = 3
SITE = Site("replay", set(), [(("flipbook",), ())] * WORKERS)
# A burst of one tenant between two others, in clips of different lengths; all are there at the beginning.
CLIPS = (*[(0, 20.0)] * 9, (1, 35.0), (2, 10.0), (1, 5.0), (2, 50.0), (1, 15.0))
JOBS = [Job(0.0, SITE.tenant(tenant), seconds) for tenant, seconds in CLIPS]


def enqueue(bench):
    return [bench.queue.enqueue(make_ticket(job.tenant, gpu_seconds=job.seconds)).id for job in JOBS]


def test_jobs_start_when_the_queue_and_the_forecast_start_them(bench):
    with emptied(bench, SITE):
        ids = enqueue(bench)
        for number in range(WORKERS):
            WorkerRegistry(bench.database).heartbeat(SITE.status(number))
        slots = forecast(bench.reader.snapshot()).slots
        real = Simulation(bench, SITE)
        real.run(dict.fromkeys(range(WORKERS), 0.0))
    settings = KedaSettings(min_replicas=WORKERS, max_replicas=WORKERS)
    replayed = dict(zip(ids, replay(JOBS, settings, Machines()).starts, strict=True))
    assert replayed == pytest.approx({job_id: slot.starts_in for job_id, slot in slots.items()})
    assert replayed == pytest.approx(real.starts)


def test_a_fleet_that_grows_starts_jobs_as_workers_that_join_the_queue_do(bench):
    """The workers of the replay join the real queue at the moments at which they become ready there."""
    settings = KedaSettings(min_replicas=1, max_replicas=WORKERS, scale_out_seconds=0)
    machines = Machines(node_seconds=20, load_seconds=10)
    replayed = replay(JOBS, settings, machines)
    grown = next(at for at, workers, _ in replayed.series if workers == WORKERS)
    ready = grown + machines.node_seconds + machines.load_seconds
    with emptied(bench, SITE):
        ids = enqueue(bench)
        real = Simulation(bench, SITE)
        real.run({0: 0.0, 1: ready, 2: ready})
    assert dict(zip(ids, replayed.starts, strict=True)) == pytest.approx(real.starts)
