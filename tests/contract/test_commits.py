"""A waiting process learns about commits of other processes; an idle process wakes no other."""

import subprocess
import sys
from math import inf

import pytest

from filmgate.database.commits import CommitSignal
from tests.tickets import make_offer, make_ticket

INSERT = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as connection:
    connection.execute("CREATE TABLE another_process (value)")
"""

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def signal(bench):
    signal = CommitSignal(bench.database)
    assert signal.wait(0), "the first look cannot know what was committed before it"
    yield signal
    signal.close()


def test_a_commit_of_this_or_another_process_ends_the_wait(bench, signal):
    assert not signal.wait(0)
    bench.queue.enqueue(make_ticket())
    assert signal.wait(inf)
    subprocess.run([sys.executable, "-c", INSERT, bench.database.url.database], check=True)
    assert signal.wait(inf)
    assert not signal.wait(0)


def test_idle_workers_that_look_for_jobs_do_not_wake_each_other(bench, signal):
    for _ in range(5):
        assert bench.queue.lease(make_offer()) is None
        bench.reader.changes({})
    assert not signal.wait(0)


def test_a_wait_ends_when_the_process_stops(signal):
    looks = iter([False, False, True])
    assert not signal.wait(inf, lambda: next(looks))
    assert next(looks, None) is None


def test_without_the_database_file_the_wait_lasts_its_interval(bench, signal, caplog):
    signal.close()
    signal._path = signal._path.with_name("gone.db")
    assert not signal.wait(0.01)
    assert "cannot detect commits by other processes" in caplog.text
    assert not signal._path.exists()
