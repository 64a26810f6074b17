"""Workers are killed at random while jobs run. Every accepted job ends once, with its complete clip."""

import os
import random
import time
from collections import Counter

import pytest

from filmgate.errors import QueueUnavailable
from filmgate.jobs import JobState
from tests.postgres import PostgresServer

JOBS = int(os.environ.get("FILMGATE_TEST_CHAOS_JOBS", "16"))
WORKERS = 3


@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgresql", marks=pytest.mark.chaos)])
def test_every_job_ends_once_under_random_kills(make_site, engine):
    server = PostgresServer() if engine == "postgresql" else None
    try:
        url = {"FILMGATE_QUEUE__URL": server.start().url} if server else {}
        site = make_site(FILMGATE_QUEUE__MAX_ATTEMPTS="20", **url)
        jobs = [site.enqueue(f"tenant-{n % 3}", seed=n, steps=6) for n in range(JOBS)]
        kills = kill_at_random(site, random.Random(JOBS))
        check(site, jobs)
        assert kills >= JOBS // 20
    finally:
        if server is not None:
            site.close()
            server.remove()


def kill_at_random(site, generator):
    """Run three workers and kill one of them every second or two, until no job is left."""
    for _ in range(WORKERS):
        site.start_worker(pace=0.02)
    kills, deadline = 0, time.monotonic() + 200 + 2 * JOBS
    while is_busy(site):
        assert time.monotonic() < deadline, site.log.read_text()[-3000:]
        time.sleep(generator.uniform(0.5, 2.0))
        victim = generator.choice([worker for worker in site.workers if worker.poll() is None])
        site.kill(victim)
        kills += 1
        site.start_worker(pace=0.02)
    return kills


def is_busy(site):
    try:
        return bool(site.reader.backlog().counts)
    except QueueUnavailable:
        return True


def check(site, jobs):
    for job in jobs:
        done = site.find(job)
        assert done.state is JobState.COMPLETED
        assert site.is_whole(job)
        ends = Counter(event.state for event in site.reader.events(job.tenant_id, job.id))
        assert (ends[JobState.COMPLETED], ends[JobState.FAILED]) == (1, 0)
    ended = site.reader.statistics().ended
    assert {each.state for each in ended} == {JobState.COMPLETED}
    assert sum(each.jobs for each in ended) == len(jobs)
