"""SQS delivers twice, late or not at all, and workers die. Every job ends once."""

import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from moto.server import ThreadedMotoServer

from filmgate.jobs import JobState, Stage
from tests.server_process import free_port
from tests.sqs_pair import SqsPair


def variables(sqs, **given):
    names = sqs.settings | {"wait_seconds": "1", "sweep_seconds": "600"} | given
    return {f"FILMGATE_QUEUE__{name.upper()}": str(value) for name, value in names.items()}


@contextmanager
def refused_connections():
    """The number of a port that closes every connection at once."""
    with socket.create_server(("127.0.0.1", free_port())) as listener:

        def refuse():
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connection.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


def test_the_message_of_a_dead_worker_wakes_the_next_one_without_a_sweep(make_site, sqs):
    site = make_site(**variables(sqs))
    job = site.enqueue(steps=60)
    first = site.start_worker(pace=1)  # a minute: it is killed long before the end
    site.wait_for_stage(job, Stage.DENOISE)
    site.start_worker(pace=0.01)
    site.wait_for_log('"ready"', 2)
    # The second worker polls the database once, then waits for a message. On a slow machine it polls later
    # and still finds nothing: the lease of the first worker has not expired.
    time.sleep(1.5)
    site.kill(first)
    done = site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 2)
    assert site.is_whole(job)
    site.wait_until(lambda: sqs.count() + sqs.count_held() == 0)


def test_messages_that_arrive_twice_or_late_run_no_job_twice(make_site, sqs):
    site = make_site(**variables(sqs, lease_seconds=30))
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


def test_jobs_accepted_while_sqs_is_down_are_delivered_by_the_sweep(make_site, sqs, monkeypatch, caplog):
    monkeypatch.setattr("filmgate.scheduling.wakers.sqs._PAUSE_SECONDS", 600)
    with refused_connections() as port:
        site = make_site(**variables(sqs, endpoint=f"http://127.0.0.1:{port}"))
        jobs = [site.enqueue(seed=n) for n in range(5)]
    failed_sends = [record for record in caplog.records if "a wake-up was not sent" in record.message]
    assert len(failed_sends) == 1, "after a failed send the other jobs do not wait for SQS"
    assert sqs.count() == 0
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        site.queue.sweep()  # as the server does every `queue.sweep_seconds`
        assert sqs.count() == 5
        site.start_worker()
        for job in jobs:
            assert site.wait_for(job).state is JobState.COMPLETED
    finally:
        server.stop()


@pytest.mark.chaos
def test_two_hundred_jobs_through_sqs_end_once_while_workers_are_killed(make_site, aws_url):
    sqs = SqsPair(aws_url, max_receives=50)
    site = make_site(**variables(sqs, sweep_seconds=2, max_attempts=20))
    jobs = [site.enqueue(f"tenant-{n % 5}", seed=n, steps=4) for n in range(200)]
    for _ in range(3):
        site.start_worker(pace=0.005)
    for _ in range(10):
        time.sleep(1)  # between two kills
        site.kill(site.workers.pop(0))
        site.start_worker(pace=0.005)
    for job in jobs:
        assert site.wait_for(job).state is JobState.COMPLETED
        assert site.is_whole(job)
