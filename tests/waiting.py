"""Waiting for a condition in tests and benchmarks."""

import time

LIMIT_SECONDS = 240.0
"""Ends a test that hangs, before pytest's own limit. With ten busy processes per core, importing torch takes
more than a minute."""


def wait_until(predicate, seconds=LIMIT_SECONDS, interval=0.02, describe=lambda: ""):
    """Returns the first truthy result of `predicate`, or raises AssertionError after `seconds`.

    The limit is generous because it costs nothing when the condition holds. `describe` adds text to the
    error, such as the end of a log.
    """
    deadline = time.monotonic() + seconds
    while not (result := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"the condition did not hold within {seconds:g} s\n{describe()}")
        time.sleep(interval)
    return result
