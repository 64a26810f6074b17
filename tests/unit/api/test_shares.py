"""Shares of tenants: counts of open things, and turns for slow work."""

import asyncio
from contextlib import ExitStack

import pytest

from filmgate.api.edge import OpenCount
from filmgate.api.services import FairSlots
from filmgate.errors import RateLimited


def test_a_count_is_limited_per_tenant_and_in_all():
    refused = []
    count = OpenCount("streams", 2, 3, refused.append)
    with ExitStack() as held:
        with count.holding("a"):
            with count.holding("a"), pytest.raises(RateLimited, match="this tenant has 2"):
                held.enter_context(count.holding("a"))
            held.enter_context(count.holding("b"))
            held.enter_context(count.holding("c"))
            with pytest.raises(RateLimited, match="the service has 3"):
                held.enter_context(count.holding("d"))
        held.enter_context(count.holding("d"))
        assert (count.total, refused) == (3, ["streams", "streams"])
    assert count.total == 0


def test_a_free_slot_goes_to_the_tenant_with_the_fewest():
    first, order = asyncio.run(_take_turns())
    assert first == ["a", "a", "b"]
    assert sorted(order) == sorted("aaaabbc")
    # The first slot that becomes free goes to c, although a and b have waited longer.
    assert order[3] == "c"


async def _take_turns():
    """Who had a slot before the first one was released, and the order in which all got one."""
    slots, order, release = FairSlots(3, per_tenant=2), [], asyncio.Event()

    async def work(tenant):
        async with slots.hold(tenant):
            order.append(tenant)
            await release.wait()

    async with asyncio.TaskGroup() as group:
        for tenant in "aaaabbc":
            group.create_task(work(tenant))
            await asyncio.sleep(0)
        first = list(order)
        release.set()
    return first, order


def test_a_waiter_that_leaves_gives_its_turn_back():
    slots = FairSlots(1, per_tenant=1)

    async def hold(tenant):
        async with slots.hold(tenant):
            return tenant

    async def leave():
        async with slots.hold("a"):
            gone, kept = asyncio.create_task(hold("b")), asyncio.create_task(hold("c"))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            late = asyncio.create_task(hold("b"))
            await asyncio.sleep(0)
        # Cancelled after its turn was granted: the slot is free for the next one.
        kept.cancel()
        return gone.cancelled(), await asyncio.wait_for(late, 5)

    assert asyncio.run(leave()) == (True, "b")


def test_a_slot_that_is_freed_while_its_next_holder_leaves_is_not_lost():
    slots = FairSlots(1, per_tenant=1)

    async def hold(tenant):
        async with slots.hold(tenant):
            return tenant

    async def leave():
        async with slots.hold("a"):
            gone, late = asyncio.create_task(hold("b")), asyncio.create_task(hold("c"))
            await asyncio.sleep(0)
            # Cancelled, but its task has not run yet when the slot becomes free.
            gone.cancel()
        return await asyncio.wait_for(asyncio.gather(gone, late, hold("b"), return_exceptions=True), 5)

    ends = asyncio.run(leave())
    assert isinstance(ends[0], asyncio.CancelledError)
    assert ends[1:] == ["c", "b"]
