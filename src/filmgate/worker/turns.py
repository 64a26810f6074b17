"""Turns on the device: while one job decodes, the next is leased and prepared, then follows immediately.

A meter adds up how long the device had a job and how long it had none.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from filmgate.scheduling.history import DeviceSeconds
from filmgate.telemetry import metrics

MAX_JOBS = 3
"""Jobs a worker holds: one that is stored, one on the device, one that is prepared for it."""
# A signal handler cannot notify a condition, so every wait checks again at this interval.
_CHECK_SECONDS = 0.1

# Gaps between clips: from the time of a kernel launch to a model that is loaded in between.
_GAP_BOUNDS = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Check = Callable[[], None]
Clock = Callable[[], float]


class Device:
    """Which job has the device, and which one is next."""

    def __init__(self, meter: "DeviceMeter | None" = None) -> None:
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

    @contextmanager
    def reserved(self, is_stopping: Callable[[], bool]) -> Iterator[bool]:
        """Wait until no job is on the device, and let none take it in the block. Yields False when stopping.

        A job that has left may otherwise come back at any time, to decode again. The meter counts idle time.
        """
        with self.changed:
            self.wait_until_left(is_stopping)
            is_reserved = self.current is None and not is_stopping()
            if is_reserved:
                self.current = DeviceTurn(self)
        try:
            yield is_reserved
        finally:
            with self.changed:
                if is_reserved:
                    self.current = None
                    self.changed.notify_all()

    @property
    def is_busy(self) -> bool:
        with self.changed:
            return self.current is not None

    def admit(self, *, is_alone: bool = False) -> "DeviceTurn":
        """The turn of a job that was just leased. On an idle device it is taken immediately."""
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
    """The `Turn` of one job. `check` raises when the job must stop; the worker sets it.

    A job that failed before is alone: no other job is prepared in parallel, and none loses an attempt if it
    crashes the process again.
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
        return self._device.current is self or self.left_at is not None

    def take(self) -> None:
        with self._device.changed:
            while self._device.current is not self:
                self.check()
                may_take = self._device.jobs == 1 or not self._is_alone or self.left_at is not None
                if self._device.current is None and may_take:
                    self._device.next = None if self._device.next is self else self._device.next
                    self._device.hand_to(self)
                else:
                    self._device.changed.wait(_CHECK_SECONDS)

    def step_aside(self) -> None:
        with self._device.changed:
            if self._device.current is self:
                self._device.hand_to(None)
                self._device.next = self
                self._device.changed.notify_all()

    def announce_end(self) -> None:
        with self._device.changed:
            self.is_ending = not self._is_alone
            self._device.changed.notify_all()

    def leave(self) -> None:
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


class DeviceMeter(Collector):
    """How long the device had a job and how long it had none. Idle time starts with the first lease loop.

    Jobs, heartbeats and scrapes call it from their own threads.
    """

    def __init__(self, registry: CollectorRegistry, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._busy_since: float | None = None
        self._idle_since: float | None = None
        self._has_waited = True
        self._seconds = DeviceSeconds()
        self._gap = metrics.WORKER_GAP_SECONDS.live_histogram(registry, _GAP_BOUNDS)
        registry.register(self)

    def start(self) -> None:
        """The worker can take jobs from now on."""
        with self._lock:
            self._idle_since = self._clock()

    def take(self) -> None:
        """A job takes the device."""
        with self._lock:
            now = self._clock()
            if self._idle_since is not None and not self._has_waited:
                gap = now - self._idle_since
                self._gap.observe(gap)
                self._seconds = replace(
                    self._seconds, gap=self._seconds.gap + gap, gaps=self._seconds.gaps + 1
                )
            self._seconds = self._read(now)
            self._idle_since, self._busy_since = None, now

    def leave(self) -> None:
        """The job has left the device."""
        with self._lock:
            now = self._clock()
            self._seconds = self._read(now)
            self._idle_since, self._busy_since, self._has_waited = now, None, False

    def wait(self) -> None:
        """No job was waiting: the idle time that follows is not a gap between clips."""
        self._has_waited = True

    def read(self) -> DeviceSeconds:
        """The seconds until now."""
        with self._lock:
            return self._read(self._clock())

    def _read(self, now: float) -> DeviceSeconds:
        busy = now - self._busy_since if self._busy_since is not None else 0.0
        idle = now - self._idle_since if self._idle_since is not None else 0.0
        return replace(self._seconds, busy=self._seconds.busy + busy, idle=self._seconds.idle + idle)

    def describe(self) -> Iterator[Metric]:
        yield metrics.WORKER_BUSY.gauge()

    def collect(self) -> Iterator[Metric]:
        seconds = self.read()
        busy = metrics.WORKER_BUSY.gauge()
        busy.add_metric([], float(self._busy_since is not None))
        yield busy
        for metric, total in (
            (metrics.WORKER_BUSY_SECONDS, seconds.busy),
            (metrics.WORKER_IDLE_SECONDS, seconds.idle),
        ):
            family = metric.counter()
            family.add_metric([], total)
            yield family
