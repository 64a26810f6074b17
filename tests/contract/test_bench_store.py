"""The bench of the store: it paces the clip, measures both ways and leaves nothing."""

import json
import time

from typer.testing import CliRunner

from filmgate.cli import app
from filmgate.jobs import TenantId
from filmgate.store.bench import ClipPlan, measure_endings

LOCAL = TenantId("local")


def test_frames_come_at_the_pace_of_the_plan():
    began = time.monotonic()
    chunks = list(ClipPlan(1000, 0.3, chunks=10).frames())
    assert (len(chunks), sum(map(len, chunks))) == (10, 1000)
    assert 0.3 <= time.monotonic() - began < 2


def test_both_ways_are_measured_and_nothing_is_left(rig):
    endings = measure_endings(rig.store, LOCAL, ClipPlan(12_000_000, 0.2, chunks=6), rounds=1)
    assert (len(endings.while_made), len(endings.afterwards)) == (1, 1)
    assert endings.ratio > 0
    assert (list(rig.store.jobs(LOCAL)), rig.unpublished()) == ([], [])


def test_the_command_prints_one_object(cloud, monkeypatch):
    for name, value in cloud.environ().items():
        monkeypatch.setenv(name, value)
    asked = CliRunner().invoke(
        app, ["bench", "store", "--megabytes", "1", "--seconds", "0.1", "--rounds", "1", "--json"]
    )
    figures = json.loads(asked.stdout)
    assert (figures["bench"], figures["store"]) == ("store", "s3")
    assert figures["while_made_to_afterwards"] > 0
