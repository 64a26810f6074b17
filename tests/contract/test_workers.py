"""What the roster promises: a model can be asked for while a worker serves it, on both databases."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from filmgate.database.schema import workers
from filmgate.jobs import SourceKind, WorkerId
from filmgate.models.cards import open_registry
from filmgate.scheduling.workers import GONE_SECONDS, Roster

FLIPBOOK = open_registry("flipbook").default
BOTH = frozenset({SourceKind.IMAGE, SourceKind.REMIX})
WAN = replace(FLIPBOOK, name="wan", aliases=(), limits=replace(FLIPBOOK.limits, sources=BOTH))
LTX = replace(WAN, name="ltx")
ONE, TWO = WorkerId("node-1"), WorkerId("node-2")


@pytest.fixture
def roster(bench):
    return Roster(bench.database)


def test_a_card_comes_back_as_it_was_announced(roster):
    roster.announce(ONE, "NVIDIA H200", [WAN, FLIPBOOK])
    assert roster.cards() == [FLIPBOOK, WAN]


def test_a_worker_that_stops_beating_is_forgotten_with_its_models(roster, clocks):
    roster.announce(ONE, "cpu", [WAN])
    clocks.pass_time(GONE_SECONDS - 1)
    roster.announce(TWO, "cpu", [LTX])
    assert roster.cards() == [LTX, WAN]
    clocks.pass_time(2)
    assert roster.cards() == [LTX]


def test_a_beat_keeps_a_worker_and_brings_its_cards_up_to_date(roster, clocks):
    for _ in range(4):
        roster.announce(ONE, "cpu", [WAN])
        clocks.pass_time(GONE_SECONDS - 1)
    roster.announce(ONE, "cpu", [WAN, LTX])
    assert roster.cards() == [LTX, WAN]


def test_a_model_stays_while_any_worker_serves_it(roster, clocks):
    roster.announce(ONE, "cpu", [WAN])
    clocks.pass_time(1)
    roster.announce(TWO, "cpu", [replace(WAN, created=7)])
    assert [card.created for card in roster.cards()] == [7]
    roster.leave(TWO)
    roster.leave(TWO)
    assert roster.cards() == [WAN]
    roster.leave(ONE)
    assert roster.cards() == []


def test_stepping_the_wall_clock_hides_nobody(roster, clocks):
    roster.announce(ONE, "cpu", [WAN])
    clocks.step(86_400)
    assert roster.cards() == [WAN]
    clocks.step(-2 * 86_400)
    assert roster.cards() == [WAN]


def test_what_was_announced_before_the_host_was_started_anew_is_gone(roster, clocks):
    roster.announce(ONE, "cpu", [WAN])
    clocks.steady = 5.0
    assert roster.cards() == []


def test_the_rows_of_the_long_gone_do_not_pile_up(roster, clocks, bench):
    for number in range(5):
        roster.announce(WorkerId(f"node-{number}"), "cpu", [WAN])
        clocks.pass_time(GONE_SECONDS + 1)
    roster.announce(ONE, "cpu", [WAN])
    with bench.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(workers)).scalar_one() == 1


def test_a_card_of_another_version_hides_no_other(roster, bench, clocks):
    roster.announce(ONE, "cpu", [WAN])
    row = {"id": "odd", "device": "cpu", "cards": '[{"name": "odd"}]', "seen_at": clocks.steady}
    with bench.database.write() as connection:
        connection.execute(sa.insert(workers), row)
    assert roster.cards() == [WAN]
