"""The database stops, the disk is full, the clock jumps: new jobs are rejected, accepted jobs survive."""

import os
import signal
import subprocess
import time

import pytest
import sqlalchemy as sa

from filmgate.errors import QueueUnavailable, StoreFull
from filmgate.jobs import JobState, Stage
from filmgate.store.base import ObjectName
from tests.postgres import PostgresServer

DAY_SECONDS = 86400
OUTAGE_SECONDS = 3  # longer than the lease of 2 s


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
@pytest.mark.chaos
def test_a_database_that_stops_and_starts_again_loses_nothing(make_site, how):
    server = PostgresServer()
    try:
        site = make_site(FILMGATE_QUEUE__URL=server.start().url, FILMGATE_QUEUE__TIMEOUT_SECONDS="1")
        running, waiting = site.enqueue(steps=12), site.enqueue(seed=8)
        worker = site.start_worker(pace=0.1)
        site.wait_for_stage(running, Stage.DENOISE)
        server.stop(how)
        with pytest.raises(QueueUnavailable) as caught:
            site.enqueue()
        assert caught.value.retryable
        site.wait_for_log('"queue_unavailable"')
        time.sleep(OUTAGE_SECONDS)
        server.start()
        for job in (running, waiting):
            done = site.wait_for(job)
            assert (done.state, done.attempt) == (JobState.COMPLETED, 1)
            assert site.is_whole(job)
        assert worker.poll() is None
        assert site.reader.statistics().ended[0].jobs == 2
    finally:
        server.remove()


@pytest.mark.chaos
def test_a_locked_database_is_retried_and_then_reported(make_site):
    site = make_site(FILMGATE_QUEUE__TIMEOUT_SECONDS="0.3")
    job = site.enqueue(steps=12)
    site.start_worker(pace=0.05)
    site.wait_for_stage(job, Stage.DENOISE)
    lock = site.database.engine.connect().execution_options(filmgate_synchronous="FULL")
    with lock.begin():
        with pytest.raises(QueueUnavailable, match="locked"):
            site.enqueue()
        site.wait_for_log('"queue_unavailable"')
        time.sleep(OUTAGE_SECONDS)
    lock.close()
    done = site.wait_for(job)
    assert (done.state, done.attempt, site.is_whole(job)) == (JobState.COMPLETED, 1, True)


@pytest.fixture
def small_disk(tmp_path):
    """A small file system that can be filled."""
    folder = tmp_path / "data"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        message = "needs permission to mount a small file system: root, or CAP_SYS_ADMIN in a container"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder):
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def test_a_full_disk_rejects_new_jobs_keeps_running_jobs_and_corrupts_nothing(make_site, small_disk):
    site = make_site(FILMGATE_STORE__MIN_FREE_BYTES="65536")
    before = site.enqueue()
    first = site.start_worker()
    site.wait_for(before)
    first.terminate()  # deletes the live fragments of the job, which would free space on the full disk later
    assert first.wait(60) == 0
    hold = small_disk.parent / "hold"
    hold.touch()
    running = site.enqueue(seed=8)
    site.start_worker(hold=hold)
    site.wait_for_stage(running, Stage.DENOISE)
    ballast = fill(small_disk)
    hold.unlink()
    assert site.store.is_nearly_full()
    with pytest.raises(StoreFull):
        site.store.put(ObjectName(running.tenant_id, running.id, "source"), [b"x" * 100_000])
    site.wait_for_log('"storage_full"', 3)
    site.wait_for_log('"queue_unavailable"', 3)
    assert site.is_whole(before)
    ballast.unlink()
    done = site.wait_for(running)
    assert (done.state, site.is_whole(running), site.is_whole(before)) == (JobState.COMPLETED, True, True)
    assert not site.store.is_nearly_full()
    with site.database.read() as connection:
        assert connection.execute(sa.text("PRAGMA integrity_check")).scalar_one() == "ok"


@pytest.mark.chaos
def test_a_worker_whose_clock_jumps_a_day_keeps_its_job(site, tmp_path):
    offset = tmp_path / "clock-offset"
    offset.write_text("0")
    job = site.enqueue(steps=40)
    site.start_worker(pace=0.15, clock_offset=offset)
    site.start_worker(pace=0.15)
    site.wait_for_stage(job, Stage.DENOISE)
    for seconds in (+DAY_SECONDS, -DAY_SECONDS):
        offset.write_text(str(seconds))
        done = site.find(job).progress.done
        # Each change of progress is a heartbeat, so several heartbeats see the new time.
        site.wait_for(job, lambda job, done=done: job.state.is_final or job.progress.done > done + 3)
    done = site.wait_for(job)
    assert (done.state, done.attempt, site.is_whole(job)) == (JobState.COMPLETED, 1, True)
