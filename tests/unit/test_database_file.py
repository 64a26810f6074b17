"""The files of the embedded database."""

import os

from filmgate.database import open_database
from filmgate.settings import QueueSettings


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
