"""Server, workers and database are killed at random: every accepted job ends once, with its complete clip.

`make soak` is the long form; FILMGATE_TEST_SOAK_KILLS is the number of kills on each database.
"""

import json
import os
import sys

import pytest

from tests.chaos.soak import opened_soak
from tests.postgres import PostgresServer
from tests.second_filmgate import second_filmgate

KILLS = int(os.environ.get("FILMGATE_TEST_SOAK_KILLS", "20"))


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_random_kills_lose_nothing_double_nothing_and_leave_the_books_exact(make_site, tmp_path, engine):
    server = PostgresServer() if engine == "postgresql" else None
    with (
        second_filmgate(tmp_path / "provider") as provider,
        opened_soak(make_site, provider, KILLS, server) as soak,
    ):
        report = soak.run()
    sys.stdout.write(f"\n{engine}: {json.dumps(report)}\n")
    assert sum(report["kills"].values()) == report["jobs"] == KILLS
    assert (report["lost"], report["doubled"], report["orphans"], report["wrong_books"]) == (0, 0, 0, [])
