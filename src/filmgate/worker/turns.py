"""Turns on the device: while one job decodes, the next is leased and prepared, then follows at once."""

import threading
import time
from collections.abc import Callable

from filmgate.worker.metrics import DeviceMeter

MAX_JOBS = 3
"""Jobs a worker holds: one that is stored, one on the device, one that is prepared for it."""
# A signal handler cannot notify a condition, so every wait looks around this often.
_CHECK_SECONDS = 0.1

Check = Callable[[], None]


class Device:
    """Which job has the device, and which one is next."""

    def __init__(self, meter: DeviceMeter | None = None) -> None:
        self._meter = meter
        self.changed = threading.Condition()
        self.current: DeviceTurn | None = None
        self.next: DeviceTurn | None = None
        self.jobs = 0

    def wait_for_room(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until a job can be leased: the device is idle, or its job has queued its last step."""
        self._wait(self._has_room, is_stopping)

    def wait_until_left(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until no job is on the device."""
        self._wait(lambda: self.current is None, is_stopping)

    @property
    def is_busy(self) -> bool:
        with self.changed:
            return self.current is not None

    def admit(self, *, is_alone: bool = False) -> "DeviceTurn":
        """The turn of a job that was just leased. On an idle device it is taken at once."""
        turn = DeviceTurn(self, is_alone=is_alone)
        with self.changed:
            self.jobs += 1
            if self.current is None and not is_alone:
                self.hand_to(turn)
            else:
                self.next = turn
        return turn

    def hand_to(self, turn: "DeviceTurn | None") -> None:
        """Change which job has the device. The caller holds `changed`."""
        self.current = turn
        if self._meter is not None:
            if turn is None:
                self._meter.leave()
            else:
                self._meter.take()

    def _has_room(self) -> bool:
        is_ending = self.current is None or self.current.is_ending
        return self.jobs < MAX_JOBS and self.next is None and is_ending

    def _wait(self, condition: Callable[[], bool], is_stopping: Callable[[], bool]) -> None:
        with self.changed:
            while not (condition() or is_stopping()):
                self.changed.wait(_CHECK_SECONDS)


class DeviceTurn:
    """The turn of one job. `check` raises when the job must stop; the worker sets it.

    A job that failed before is alone: no other job is prepared beside it, and none loses an attempt if it
    ends the process again.
    """

    def __init__(self, device: Device, *, is_alone: bool = False) -> None:
        self._device = device
        self._is_alone = is_alone
        self._has_ended = False
        self.check: Check = lambda: None
        self.is_ending = False
        self.left_at: float | None = None
        # When the latents of the checkpoint had left the device.
        self.checkpoint_at: float | None = None

    @property
    def is_taken(self) -> bool:
        """Whether the job has had the device: it has started."""
        return self._device.current is self or self.left_at is not None

    def take(self) -> None:
        """Wait until the job before has left the device. Raises what `check` raises. Idempotent."""
        with self._device.changed:
            while not self.is_taken:
                self.check()
                if self._device.current is None and (not self._is_alone or self._device.jobs == 1):
                    self._device.next = None
                    self._device.hand_to(self)
                else:
                    self._device.changed.wait(_CHECK_SECONDS)

    def announce_end(self) -> None:
        """All denoising steps are queued: the next job can be leased and prepared. Idempotent."""
        with self._device.changed:
            self.is_ending = not self._is_alone
            self._device.changed.notify_all()

    def leave(self) -> None:
        """The last work for the device is queued: the next job can queue its first. Idempotent."""
        with self._device.changed:
            if self._device.current is self:
                self._device.hand_to(None)
                self.left_at = time.monotonic()
            if self._device.next is self:
                self._device.next = None
            self._device.changed.notify_all()

    def end(self) -> None:
        """The worker is done with the job. Idempotent."""
        self.leave()
        with self._device.changed:
            self._device.jobs -= not self._has_ended
            self._has_ended = True
            self._device.changed.notify_all()
