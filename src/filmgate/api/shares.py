"""What tenants share: counts of open streams and uploads, and turns for slow work."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from filmgate.errors import RateLimited
from filmgate.jobs import TenantId

_RETRY_SECONDS = 5.0


class OpenCount:
    """Limits how many things of one kind are open, per tenant and in all; 0 means no limit."""

    def __init__(self, kind: str, per_tenant: int, total: int, on_refused: Callable[[str], None]) -> None:
        self._kind = kind
        self._per_tenant = per_tenant
        self._total = total
        self._on_refused = on_refused
        self._open: Counter[TenantId] = Counter()

    def has_room(self, tenant_id: TenantId) -> bool:
        """Whether the tenant may open one more."""
        return not self._is_over(tenant_id) and not (self._total and self._open.total() >= self._total)

    def _is_over(self, tenant_id: TenantId) -> bool:
        return bool(self._per_tenant) and self._open[tenant_id] >= self._per_tenant

    def enter(self, tenant_id: TenantId) -> None:
        """Count one more. Raises RateLimited."""
        if not self.has_room(tenant_id):
            is_over = self._is_over(tenant_id)
            self._on_refused(self._kind)
            whose = f"this tenant has {self._per_tenant}" if is_over else f"the service has {self._total}"
            raise RateLimited(
                f"too many {self._kind}: {whose} open, which is the limit; close one or try again later",
                retry_after_seconds=_RETRY_SECONDS,
            )
        self._open[tenant_id] += 1

    def leave(self, tenant_id: TenantId) -> None:
        self._open[tenant_id] -= 1
        if not self._open[tenant_id]:
            del self._open[tenant_id]

    @contextmanager
    def holding(self, tenant_id: TenantId) -> Iterator[None]:
        self.enter(tenant_id)
        try:
            yield
        finally:
            self.leave(tenant_id)

    @property
    def total(self) -> int:
        return self._open.total()


class FairSlots:
    """Slots for slow work. A tenant holds at most `per_tenant`; the tenant with the fewest gets the next one.

    Used on one event loop.
    """

    def __init__(self, slots: int, per_tenant: int) -> None:
        self._free = slots
        self._per_tenant = per_tenant
        self._held: Counter[TenantId] = Counter()
        self._waiting: dict[TenantId, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def hold(self, tenant_id: TenantId) -> AsyncIterator[None]:
        await self._acquire(tenant_id)
        try:
            yield
        finally:
            self._release(tenant_id)

    async def _acquire(self, tenant_id: TenantId) -> None:
        if self._free and self._held[tenant_id] < self._per_tenant:
            self._take(tenant_id)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(tenant_id)
            else:
                self._forget(tenant_id, turn)
            raise

    def _take(self, tenant_id: TenantId) -> None:
        self._free -= 1
        self._held[tenant_id] += 1

    def _release(self, tenant_id: TenantId) -> None:
        self._free += 1
        self._held[tenant_id] -= 1
        if not self._held[tenant_id]:
            del self._held[tenant_id]
        self._grant()

    def _grant(self) -> None:
        while self._free:
            able = [name for name in self._waiting if self._held[name] < self._per_tenant]
            if not able:
                return
            # The first of the tenants with the fewest slots; its next turn comes after the others'.
            name = min(able, key=lambda each: self._held[each])
            turns = self._waiting.pop(name)
            turn = turns.popleft()
            if turns:
                self._waiting[name] = turns
            # A waiting client that has left is cancelled; its task may not have run since.
            if not turn.done():
                self._take(name)
                turn.set_result(None)

    def _forget(self, tenant_id: TenantId, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(tenant_id, deque())
        if turn in turns:
            turns.remove(turn)
        if not turns:
            self._waiting.pop(tenant_id, None)
