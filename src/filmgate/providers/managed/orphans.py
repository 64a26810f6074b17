"""What still lies at the provider for jobs that have ended here: cancelled ones, and those whose worker died
between the acknowledgement and the removal.
"""

from filmgate.errors import ProviderError, QueueUnavailable
from filmgate.providers.base import InvocationState, Provider
from filmgate.providers.invocations import InvocationRecord, RecordState, SqlInvocations
from filmgate.telemetry.logs import Log

log = Log("worker")
# Longer than the last steps of a job take: the worker that ended it removes its own.
_IDLE_SECONDS = 30.0


class LeftoverSweep:
    """Call `sweep` now and then, from one process or many: every step is idempotent."""

    def __init__(
        self, provider: Provider, invocations: SqlInvocations, idle_seconds: float = _IDLE_SECONDS
    ) -> None:
        self._provider = provider
        self._invocations = invocations
        self._idle_seconds = idle_seconds

    def sweep(self) -> int:
        """Remove what is finished over there; how many."""
        try:
            found = self._invocations.leftovers(self._provider.name, idle_seconds=self._idle_seconds)
            return sum(self._remove(record) for record in found)
        except (ProviderError, QueueUnavailable) as exc:
            log.warning("leftovers stay at the provider; they are tried again", code=exc.code)
            return 0

    def _remove(self, record: InvocationRecord) -> bool:
        assert record.invocation_id is not None
        if self._provider.poll(record.invocation_id).state is InvocationState.PENDING:
            self._invocations.settle(record.job_id, record.state)  # to the end of the line
            return False
        self._provider.discard(record.invocation_id)
        self._invocations.settle(record.job_id, RecordState.CLOSED)
        log.info("a leftover was removed from the provider", job_id=record.job_id)
        return True
