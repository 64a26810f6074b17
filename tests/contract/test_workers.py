"""The worker table on every database: a worker is alive while it sends heartbeats."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from filmgate.database.schema import workers
from filmgate.errors import WorkerNotFound
from filmgate.jobs import Route, SourceKind, WorkerId
from filmgate.models.cards import ServedModels, open_registry
from filmgate.scheduling.workers import (
    TIMEOUT_SECONDS,
    GpuStatus,
    WorkerRegistry,
    WorkerStatus,
)

FLIPBOOK = open_registry("flipbook").default
BOTH = frozenset({SourceKind.IMAGE, SourceKind.REMIX})
WAN = replace(FLIPBOOK, name="wan", aliases=(), limits=replace(FLIPBOOK.limits, sources=BOTH))
LTX = replace(WAN, name="ltx")


def status(number=1, **fields):
    return WorkerStatus(
        WorkerId(f"node-{number}"),
        **{"route": Route.GPU, "models": ("wan",), "device": "NVIDIA H200"} | fields,
    )


@pytest.fixture
def registry(bench):
    return WorkerRegistry(bench.database)


@pytest.fixture
def alive(reader):
    return lambda: {worker.worker_id: worker for worker in reader.backlog().workers}


def test_status_and_cards_are_returned_as_announced(registry, alive):
    managed = status(2, route=Route.MANAGED, models=("wan", "ltx"), device="", capacity=20)
    on_gpu = status(1, speed=0.5, gpu=GpuStatus(True, 71.0, 30 * 2**30, 80 * 2**30))
    registry.heartbeat(on_gpu, [WAN, FLIPBOOK])
    registry.heartbeat(managed)
    assert alive() == {"node-1": on_gpu, "node-2": managed}
    assert registry.cards() == [FLIPBOOK, WAN]


def test_a_model_that_may_scale_from_zero_keeps_the_card_of_its_last_worker(registry, bench):
    registry.heartbeat(status(1), [WAN, FLIPBOOK])
    registry.leave(WorkerId("node-1"))
    assert registry.served() == ServedModels(absent=frozenset({"flipbook", "wan"}))
    served = registry.served({"wan", "ltx"})
    assert (served.cards, served.names, served.cold) == ((WAN,), set(), {"ltx", "wan"})
    assert registry.served({"*"}).cards == (FLIPBOOK, WAN)
    newer = replace(WAN, version="2")
    WorkerRegistry(bench.database).heartbeat(status(2), [newer])
    assert registry.served({"wan"}).cards == (newer,)
    registry.leave(WorkerId("node-2"))
    assert registry.served({"wan"}).cards == (newer,)


def test_a_worker_without_heartbeats_is_gone_after_the_timeout(registry, alive, clocks):
    registry.heartbeat(status(1), [WAN])
    clocks.pass_time(TIMEOUT_SECONDS - 1)
    registry.heartbeat(status(2), [LTX])
    assert registry.cards() == [LTX, WAN]
    clocks.pass_time(2)
    assert (registry.cards(), set(alive())) == ([LTX], {"node-2"})


def test_a_drained_worker_learns_it_from_its_next_heartbeat_and_gets_no_jobs(registry, alive, reader):
    assert registry.heartbeat(status(1), [WAN]) is False
    registry.heartbeat(status(2, models=("ltx",)), [LTX])
    assert registry.drain(WorkerId("node-1")).is_draining
    assert registry.heartbeat(status(1), [WAN]) is True, "a heartbeat does not end the drain"
    assert alive()["node-1"] == status(1, is_draining=True)
    assert [worker.worker_id for worker in reader.snapshot().workers] == ["node-2"]
    assert registry.served().names == {"ltx"}
    with pytest.raises(WorkerNotFound, match="no live worker has the id 'node-3'"):
        registry.drain(WorkerId("node-3"))


def test_a_worker_that_drains_by_itself_is_no_capacity_and_is_not_asked_to(registry, reader):
    registry.heartbeat(status(1), [WAN])
    assert registry.heartbeat(status(1, is_draining=True), [WAN]) is False
    assert reader.snapshot().workers == ()
    registry.heartbeat(status(1), [WAN])
    assert reader.snapshot().workers == (), "a drain never ends"


def test_a_worker_that_was_silent_still_learns_that_it_should_drain(registry, clocks):
    registry.heartbeat(status(1), [WAN])
    registry.drain(WorkerId("node-1"))
    clocks.pass_time(10 * TIMEOUT_SECONDS)
    registry.heartbeat(status(2), [WAN])
    assert registry.heartbeat(status(1), [WAN]) is True


def test_a_heartbeat_keeps_a_worker_alive_and_updates_its_cards(registry, clocks):
    for _ in range(4):
        registry.heartbeat(status(1), [WAN])
        clocks.pass_time(TIMEOUT_SECONDS - 1)
    registry.heartbeat(status(1), [WAN, LTX])
    assert registry.cards() == [LTX, WAN]


def test_a_model_is_served_while_any_worker_serves_it(registry, clocks):
    registry.heartbeat(status(1), [WAN])
    clocks.pass_time(1)
    registry.heartbeat(status(2), [replace(WAN, created=7)])
    assert [card.created for card in registry.cards()] == [7]
    registry.leave(WorkerId("node-2"))
    registry.leave(WorkerId("node-2"))
    assert registry.cards() == [WAN]
    registry.leave(WorkerId("node-1"))
    assert registry.cards() == []


def test_a_step_of_the_wall_clock_does_not_hide_a_worker(registry, clocks):
    registry.heartbeat(status(1), [WAN])
    clocks.step(86_400)
    assert registry.cards() == [WAN]
    clocks.step(-2 * 86_400)
    assert registry.cards() == [WAN]


def test_workers_from_before_a_reboot_are_gone(registry, alive, clocks):
    registry.heartbeat(status(1), [WAN])
    clocks.steady = 5.0
    assert (registry.cards(), alive()) == ([], {})


def test_rows_of_workers_that_are_gone_are_deleted(registry, clocks, bench):
    for number in range(5):
        registry.heartbeat(status(number), [WAN])
        clocks.pass_time(3601)
    registry.heartbeat(status(1), [WAN])
    with bench.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(workers)).scalar_one() == 1


def test_a_card_of_another_version_does_not_hide_other_cards(registry, bench, clocks):
    registry.heartbeat(status(1), [WAN])
    with bench.database.write() as connection:
        row = dict(connection.execute(sa.select(workers)).mappings().one())
        connection.execute(sa.insert(workers), row | {"id": "odd", "cards": '[{"name": "odd"}]'})
    assert registry.cards() == [WAN]
