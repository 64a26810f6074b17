"""How often a transaction of the queue asks PostgreSQL for the time, which is a round trip under a lock."""

from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from filmgate.database.engine import Database
from filmgate.jobs import Progress, Stage
from filmgate.scheduling import open_queue
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from tests.tickets import RESULT, make_offer, make_ticket


@contextmanager
def counted_readings(database):
    readings = []

    @sa.event.listens_for(database.engine, "before_cursor_execute")
    def count(_connection, _cursor, statement, *_):
        if "clock_timestamp" in statement:
            readings.append(statement)

    yield readings
    sa.event.remove(database.engine, "before_cursor_execute", count)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_transaction_reads_the_clock_once_after_its_locks(database_url, tmp_path):
    database = Database(database_url)
    queue = open_queue(database, DataKeys(FileKeyring(tmp_path / "keys")), QueueSettings())
    queue.enqueue(make_ticket())
    with counted_readings(database) as readings:
        lease = queue.lease(make_offer())
    assert len(readings) == 2, "one to find jobs that are due, one for the lease"
    with counted_readings(database) as readings:
        queue.heartbeat(lease, Progress(Stage.DENOISE, 0, 8, 0.0))
        queue.complete(lease, RESULT)
    assert len(readings) == 2
    database.close()
