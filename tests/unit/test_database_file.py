"""The files of the embedded database."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from filmgate.database import open_database
from filmgate.database.backup import copy_database, place_database
from filmgate.errors import QueueUnavailable, UsageError
from filmgate.settings import QueueSettings
from tests.full_disk import full_disk


def test_only_the_owner_can_read_the_database_and_its_journal(tmp_path):
    data = tmp_path / "data"
    mask = os.umask(0o022)
    try:
        for _ in range(2):
            database = open_database(QueueSettings(), data)
            with database.write() as connection:
                connection.exec_driver_sql("DELETE FROM workers")
            modes = {path.name: path.stat().st_mode & 0o777 for path in data.iterdir()}
            database.close()
            assert set(modes.values()) == {0o600}, modes
            assert "filmgate.db-wal" in modes
            (data / "filmgate.db").chmod(0o644)  # as an older version left it
    finally:
        os.umask(mask)
    assert data.stat().st_mode & 0o777 == 0o700


def test_a_writer_waits_for_other_threads_no_longer_than_the_timeout(tmp_path):
    database = open_database(QueueSettings(timeout_seconds=0.1), tmp_path)
    with ThreadPoolExecutor(1) as pool, database.write():
        waiting = pool.submit(lambda: database.write().__enter__())
        with pytest.raises(QueueUnavailable, match="other threads are writing"):
            waiting.result(60)
    with database.write() as connection:
        connection.exec_driver_sql("DELETE FROM workers")
    database.close()


def test_a_database_is_copied_and_restored_in_folders_with_any_name(tmp_path):
    folder = tmp_path / "100%20 #1?mode=rw"
    database = open_database(QueueSettings(), folder / "home")
    copy_database(database, folder / "copy.db")
    database.close()
    place_database(folder / "copy.db", folder / "new" / "filmgate.db")
    restored = open_database(QueueSettings(), folder / "new")
    with restored.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM jobs").scalar_one() == 0
    restored.close()


def test_a_copy_that_fails_names_the_reason_and_not_the_backup(tmp_path):
    database = open_database(QueueSettings(), tmp_path / "home")
    copy_database(database, tmp_path / "copy.db")
    new = tmp_path / "new" / "filmgate.db"
    with full_disk(8192):
        with pytest.raises(QueueUnavailable, match=r"the database could not be copied to \S+second.db: disk"):
            copy_database(database, tmp_path / "second.db")
        with pytest.raises(QueueUnavailable, match=r"copy.db could not be copied to \S+filmgate.db: disk"):
            place_database(tmp_path / "copy.db", new)
    database.close()
    assert list(new.parent.iterdir()) == []


def test_a_database_is_not_restored_over_the_journal_of_another(tmp_path):
    database = open_database(QueueSettings(), tmp_path / "home")
    copy_database(database, tmp_path / "copy.db")
    with database.write() as connection:
        connection.exec_driver_sql("DELETE FROM workers")
    # A crash leaves the journal; then somebody deleted the database, but not the journal.
    left = tmp_path / "new" / "filmgate.db-wal"
    left.parent.mkdir()
    left.write_bytes((tmp_path / "home" / "filmgate.db-wal").read_bytes())
    database.close()
    with pytest.raises(UsageError, match="filmgate.db-wal exists; restore into a new data folder"):
        place_database(tmp_path / "copy.db", tmp_path / "new" / "filmgate.db")
    assert [path.name for path in left.parent.iterdir()] == ["filmgate.db-wal"]
