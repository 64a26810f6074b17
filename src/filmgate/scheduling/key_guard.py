"""Which tenants a process skips when it leases, because their encryption key could not be used."""

from dataclasses import dataclass
from typing import ClassVar

from filmgate.jobs import TenantId

_FIRST_SECONDS = 5.0
_MAX_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class _Block:
    seconds: float
    until: float  # on the steady clock of the database


class KeyGuard:
    """One tenant's unusable key must not stop the jobs of the others.

    A blocked tenant is tried again after a pause that doubles with every failure. Other processes have
    guards of their own: they may have a keyring that works.
    """

    # The job itself waits longer than the first pause, so that other jobs of its tenant get a turn.
    RETRY_SECONDS: ClassVar[float] = 10.0

    def __init__(self) -> None:
        self._blocks: dict[TenantId, _Block] = {}

    def blocked(self, steady_now: float) -> tuple[TenantId, ...]:
        """The tenants to skip now."""
        return tuple(tenant_id for tenant_id, block in self._blocks.items() if steady_now < block.until)

    def block(self, tenant_id: TenantId, steady_now: float, *, is_over: bool) -> float:
        """Skip the tenant for a while. Returns for how many seconds.

        `is_over`: the job has failed, and the next one of its tenant may follow soon.
        """
        known = self._blocks.get(tenant_id)
        seconds = _FIRST_SECONDS if known is None else min(known.seconds * 2, _MAX_SECONDS)
        if is_over:
            seconds = 1.0
        self._blocks[tenant_id] = _Block(seconds, steady_now + seconds)
        return seconds

    def allow(self, tenant_id: TenantId) -> None:
        """The key works again."""
        self._blocks.pop(tenant_id, None)
