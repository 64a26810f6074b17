"""The thread that looks at waiting jobs outlives whatever a look runs into."""

import threading

from filmgate.errors import QueueUnavailable
from filmgate.scheduling.spill import spilling


class StumblingSpiller:
    """Meets an outage, then a bug, then works."""

    def __init__(self):
        self.looks = 0
        self.has_worked = threading.Event()

    def look(self):
        self.looks += 1
        if self.looks == 1:
            raise QueueUnavailable("down")
        if self.looks == 2:
            raise KeyError("a bug")
        self.has_worked.set()
        return 0


def test_an_outage_and_a_bug_cost_one_look_each_and_both_are_told(caplog):
    spiller = StumblingSpiller()
    with caplog.at_level("INFO", "filmgate.routing"), spilling(spiller, 0.01):
        assert spiller.has_worked.wait(60)
    assert [record.levelname for record in caplog.records[:2]] == ["WARNING", "ERROR"]


def test_the_thread_is_gone_when_the_block_ends():
    spiller = StumblingSpiller()
    with spilling(spiller, 0.01):
        assert spiller.has_worked.wait(60)
        assert "spill" in [thread.name for thread in threading.enumerate()]
    seen = spiller.looks
    assert "spill" not in [thread.name for thread in threading.enumerate()]
    assert spiller.looks == seen
