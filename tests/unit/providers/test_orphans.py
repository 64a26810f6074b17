"""The sweep of orphans at the provider: one that cannot be deleted does not block the others."""

from dataclasses import dataclass, field

import pytest

from filmgate.errors import ProviderError, ProviderRefused, ProviderUnusable
from filmgate.jobs import InvocationId, JobId
from filmgate.providers.invocations import InvocationRecord, RecordState
from filmgate.providers.managed.orphans import OrphanSweep
from tests.fake_provider import FakeProvider

RECORD = InvocationRecord(
    JobId("video_1"), "elsewhere", RecordState.OPEN, 1.0, invocation_id=InvocationId("one")
)


@dataclass
class Records:
    """One orphan, and what the sweep does with it."""

    calls: list[str] = field(default_factory=list)

    def orphans(self, provider, *, idle_seconds):
        return [RECORD]

    def postpone(self, record):
        self.calls.append("postponed")

    def close(self, record):
        self.calls.append("closed")


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ProviderError("no answer"), "postponed"),
        (ProviderUnusable("no permission"), "postponed"),
        (ProviderRefused("no such invocation"), "closed"),
    ],
)
def test_an_orphan_that_cannot_be_deleted_makes_room_for_the_next(error, call):
    class FailingProvider(FakeProvider):
        def discard(self, invocation_id):
            raise error

    records = Records()
    assert OrphanSweep(FailingProvider(), records).run() == 0
    assert records.calls == [call]


def test_a_deleted_orphan_is_closed():
    records = Records()
    assert OrphanSweep(FakeProvider(), records).run() == 1
    assert records.calls == ["closed"]
