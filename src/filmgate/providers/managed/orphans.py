"""Deletes data of finished jobs at the provider: of cancelled and removed jobs, and of jobs whose worker
crashed between the completion and the deletion.
"""

from filmgate.errors import ProviderError, ProviderRefused, QueueUnavailable
from filmgate.providers.base import InvocationState, Provider
from filmgate.providers.invocations import InvocationRecord, SqlInvocations
from filmgate.telemetry.logs import Log
from filmgate.telemetry.periodic import attempt_each

log = Log("worker")
# Longer than the last steps of a job take, because the worker that ends a job deletes its data.
_IDLE_SECONDS = 30.0


class OrphanSweep:
    """Call `run` every minute, from any number of processes: every step is idempotent."""

    def __init__(
        self, provider: Provider, invocations: SqlInvocations, idle_seconds: float = _IDLE_SECONDS
    ) -> None:
        self._provider = provider
        self._invocations = invocations
        self._idle_seconds = idle_seconds
        self._deleted = 0

    def run(self) -> int:
        """Delete the data of finished provider jobs. Returns the number of deletions."""
        self._deleted = 0
        try:
            found = self._invocations.orphans(self._provider.name, idle_seconds=self._idle_seconds)
        except QueueUnavailable as exc:
            log.warning("the orphans at the provider could not be listed; retrying later", code=exc.code)
            return 0
        attempt_each("provider orphans", self._delete, found)
        return self._deleted

    def _delete(self, record: InvocationRecord) -> None:
        assert record.invocation_id is not None
        try:
            if self._provider.poll(record.invocation_id).state is InvocationState.PENDING:
                if record.is_removed:
                    self._provider.cancel(record.invocation_id)
                self._invocations.postpone(record)
                return
            self._provider.discard(record.invocation_id)
            log.info("an orphan was deleted at the provider", job_id=record.job_id)
            self._deleted += 1
        except ProviderRefused as exc:
            message = "the provider rejects the deletion of an orphan permanently; it may keep the clip"
            log.warning(message, code=exc.code, job_id=record.job_id)
        except ProviderError as exc:
            log.warning("could not delete an orphan; retrying later", code=exc.code, job_id=record.job_id)
            self._invocations.postpone(record)
            return
        self._invocations.close(record)
