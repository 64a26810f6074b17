"""The command `filmgate route`."""

import json
from functools import partial

import pytest

from filmgate.database import open_database
from filmgate.jobs import Route, RouteReason, Routing
from filmgate.scheduling import open_queue
from filmgate.scheduling.base import Move
from filmgate.settings import Settings, with_values
from filmgate.store.keys import open_keys
from tests.commands import run_filmgate
from tests.tickets import PROMPT, make_ticket

WHY = Routing(
    RouteReason.DEADLINE,
    "your GPUs take 240 s (230 s of it waiting), 90 s until the deadline; http takes 40 s",
    provider="http",
    provider_model="wan",
    changes=("size 128x128 -> 512x512",),
    usd=1.25,
    decided_at=1000.0,
)


@pytest.fixture
def route(tmp_path):
    return partial(run_filmgate, tmp_path, "route")


@pytest.fixture
def job(tmp_path):
    settings = with_values(Settings(), {"data": tmp_path})
    database = open_database(settings.queue, settings.data)
    queue = open_queue(database, open_keys(settings.store, settings.data), settings.queue)
    job = queue.enqueue(make_ticket())
    queue.reroute([Move(job.tenant_id, job.id, Route.MANAGED, WHY)])
    database.close()
    return job


def test_route_reason_and_moves_are_printed_without_the_prompt(route, job):
    shown = route(job.id, "--tenant", "acme")
    assert shown.returncode == 0
    for text in (
        "queued  managed  deadline",
        WHY.detail,
        "size 128x128 -> 512x512",
        "1.25",
        "moved to managed",
    ):
        assert text in shown.stdout
    printed = json.loads(route(job.id, "--tenant", "acme", "--json").stdout)
    assert (printed["route"], printed["routing"]["provider"], printed["routing"]["usd"]) == (
        "managed",
        "http",
        1.25,
    )
    assert [(move["route"], move["reason"]) for move in printed["moves"]] == [("managed", "deadline")]
    assert PROMPT not in shown.stdout + json.dumps(printed)


def test_a_job_of_another_tenant_is_not_found_and_the_option_is_named(route, job):
    result = route(job.id)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "tenant local has no job" in result.stderr
    assert "--tenant" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("video_x",), "JOB: 'video_x' is not the id of a video"),
        (("video_" + "0" * 32, "--tenant", ""), "--tenant: '' is not the name of a tenant"),
    ],
)
def test_what_is_no_id_and_no_name_is_refused(route, arguments, message):
    result = route(*arguments)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr
