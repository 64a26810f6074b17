"""SQS between real processes: twice, late, down, and with a worker that dies. Every job ends once."""

import socket
import time

import pytest
from moto.server import ThreadedMotoServer

from filmgate.jobs import JobState, Stage
from tests.sqs_pair import SqsPair


def variables(site, **given):
    names = site.settings | {"wait_seconds": "1", "sweep_seconds": "600"} | given
    return {f"FILMGATE_QUEUE__{name.upper()}": str(value) for name, value in names.items()}


def test_a_dead_workers_message_wakes_the_next_without_any_sweep(make_site, sqs):
    site = make_site(**variables(sqs))
    job = site.enqueue(steps=60)
    first = site.start_worker(pace=0.2)
    site.wait_for_stage(job, Stage.DENOISE)
    site.start_worker(pace=0.01)
    site.wait_until(lambda: site.log.read_text().count('"ready"') == 2)
    time.sleep(1.5)  # the second worker's first look at the database is over: only a message can wake it
    site.kill(first)
    done = site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 2)
    assert site.is_whole(job)
    site.wait_until(lambda: sqs.count() + sqs.count_held() == 0)


def test_messages_that_come_twice_and_late_run_nothing_twice(make_site, sqs):
    site = make_site(**variables(sqs))
    jobs = [site.enqueue(seed=n) for n in range(8)]
    bodies = [message["Body"] for _ in range(8) for message in sqs.take()]
    for body in bodies:
        sqs.send(body)
    for _ in range(2):
        site.start_worker(pace=0.005)
    for job in jobs:
        done = site.wait_for(job)
        assert (done.state, done.attempt, done.fence) == (JobState.COMPLETED, 1, 1)
    before = [site.find(job) for job in jobs]
    for body in bodies:
        sqs.send(body)
    site.wait_until(lambda: sqs.count() + sqs.count_held() == 0)
    assert [site.find(job) for job in jobs] == before


def test_jobs_accepted_while_sqs_is_down_are_delivered_by_the_sweep(make_site, sqs):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    site = make_site(**variables(sqs, endpoint=f"http://127.0.0.1:{port}", sweep_seconds=0.5))
    started = time.monotonic()
    jobs = [site.enqueue(seed=n) for n in range(5)]
    assert time.monotonic() - started < 5, "only the first of them waits for SQS"
    assert sqs.count() == 0
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        site.start_worker(pace=0.005)
        for job in jobs:
            assert site.wait_for(job).state is JobState.COMPLETED
        site.wait_until(lambda: "wake-ups sent again" in site.log.read_text())
    finally:
        server.stop()


@pytest.mark.chaos
def test_two_hundred_jobs_through_sqs_under_kills_all_end_once(make_site, aws_url):
    sqs = SqsPair(aws_url, max_receives=50)
    site = make_site(**variables(sqs, sweep_seconds=2, max_attempts=20))
    jobs = [site.enqueue(f"tenant-{n % 5}", seed=n, steps=4) for n in range(200)]
    for _ in range(3):
        site.start_worker(pace=0.005)
    for _ in range(10):
        time.sleep(1)
        site.kill(site.workers.pop(0))
        site.start_worker(pace=0.005)
    for job in jobs:
        assert site.wait_for(job, seconds=240).state is JobState.COMPLETED
        assert site.is_whole(job)
