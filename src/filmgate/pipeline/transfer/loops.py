"""From decoded chunks to bytes on the host: a plain loop, and an overlapped one with the same bytes.

    decode thread   chunk n+1 | convert into a device slot | ready mark ->
    copy thread                  waits for a free host slot | copy on the copy stream | copied mark ->
    encode thread                                               waits for the mark | consume | slot free

A device slot is reused once the copy that reads it is marked; a host slot once the consumer has returned.
Only the copy thread waits for the consumer: the decode thread feels a slow encoder when every slot is full.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Self

import numpy as np
from torch import Tensor

from filmgate.pipeline.control import Control
from filmgate.pipeline.decode import exact_twin
from filmgate.pipeline.decode.base import VideoDecoder
from filmgate.pipeline.transfer.channel import Channel, ChannelClosed
from filmgate.pipeline.transfer.rings import DeviceSlot, HostChunk, NonFiniteFrames, Rings
from filmgate.pipeline.transfer.streams import Mark
from filmgate.pipeline.transfer.timeline import AnyTimeline, NoTimeline

log = logging.getLogger(__name__)

Consumer = Callable[[np.ndarray], None]
"""Takes frames [n, ...] as uint8; the array is only valid during the call."""


def carry_plain(
    chunks: Iterator[Tensor],
    rings: Rings,
    consume: Consumer,
    control: Control,
    timeline: AnyTimeline | None = None,
) -> None:
    """One chunk after the other: decode, copy, wait, consume. What the overlapped loop is held to."""
    timeline = timeline or NoTimeline()
    device, host = rings.free_device.get(), rings.free_host.get()
    try:
        for before, frames, after in _marked(chunks, rings):
            control.check()
            timeline.between("decode", before, after)
            count = rings.fill(device, frames)
            started, copied = rings.streams.copy(
                device.buffer[:count], host.buffer[:count], after=rings.streams.mark_compute()
            )
            consume(HostChunk(host, count, rings.frame_shape, copied).wait())
            timeline.between("copy", started, copied)
    finally:
        rings.free_device.put(device)
        rings.free_host.put(host)


def carry_overlapped(
    chunks: Iterator[Tensor],
    rings: Rings,
    consume: Consumer,
    control: Control,
    timeline: AnyTimeline | None = None,
) -> None:
    """The same bytes to the same consumer, with decode, copy and consume at work at the same time."""
    timeline = timeline or NoTimeline()
    with Conveyor(rings, consume, timeline) as conveyor:
        for before, frames, after in _marked(chunks, rings):
            control.check()
            timeline.between("decode", before, after)
            conveyor.put(frames)


def carry_with_twin(
    decoder: VideoDecoder, carry: Callable[[VideoDecoder, Consumer, int], None], consume: Consumer
) -> None:
    """Carry a clip's frames to `consume` by `carry(decoder, consume, start)`.

    Should a decoder's frames turn out not to be numbers, which is known once they are on the host, its exact
    twin goes on from there. What was consumed until then stays.
    """
    done = 0

    def counting(frames: np.ndarray) -> None:
        nonlocal done
        consume(frames)
        done += len(frames)

    try:
        carry(decoder, counting, done)
        return
    except NonFiniteFrames:
        twin = exact_twin(decoder)
        if twin is None:
            raise
    log.warning("decode: numbers beyond half precision at frame %d, on with the exact decoder", done)
    carry(twin, counting, done)


def _marked(chunks: Iterator[Tensor], rings: Rings) -> Iterator[tuple[Mark, Tensor, Mark]]:
    while True:
        before = rings.streams.mark_compute()
        frames = next(chunks, None)
        if frames is None:
            return
        yield before, frames, rings.streams.mark_compute()


class Conveyor:
    """The two threads behind the decode thread. A failure in one ends all, raised from `put` or at exit."""

    DEPTH = 2  # chunks queued on the GPU: one at work, one behind it. More would only delay a cancel.

    def __init__(self, rings: Rings, consume: Consumer, timeline: AnyTimeline) -> None:
        self._rings = rings
        self._consume = consume
        self._timeline = timeline
        self._ready: deque[Mark] = deque()
        self._to_copy: Channel[tuple[DeviceSlot, int, Mark]] = Channel(capacity=64)
        self._to_consume: Channel[HostChunk] = Channel(capacity=64)
        self._failure: BaseException | None = None
        self._threads = [
            Thread(target=self._guard, args=(self._copy_all,), name="filmgate-copy", daemon=True),
            Thread(target=self._guard, args=(self._consume_all,), name="filmgate-encode", daemon=True),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def put(self, frames: Tensor) -> None:
        """Queue a chunk for conversion and copy, then wait until the GPU is at most DEPTH chunks behind."""
        with suppress(ChannelClosed):
            slot = self._rings.free_device.get()
            count = self._rings.fill(slot, frames)
            ready = self._rings.streams.mark_compute()
            self._to_copy.put((slot, count, ready))
            self._ready.append(ready)
            if len(self._ready) == self.DEPTH:
                self._ready.popleft().wait_on_host()
            return
        assert self._failure is not None, "only a failure closes the channels under a running decoder"
        raise self._failure

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None:
            self._to_copy.finish()
        else:
            self._close()
        for thread in self._threads:
            thread.join()
        self._rings.streams.drain()
        # The error's traceback leads back here: kept, it would hold the rings until a garbage collection.
        failure, self._failure = self._failure, None
        try:
            if exc is None and failure is not None:
                raise failure
        finally:
            del failure

    def _copy_all(self) -> None:
        streams = self._rings.streams
        while True:
            slot, count, ready = self._to_copy.get()
            host = self._rings.free_host.get()
            started, copied = streams.copy(slot.buffer[:count], host.buffer[:count], after=ready)
            slot.copied = copied
            self._rings.free_device.put(slot)
            self._timeline.between("copy", started, copied)
            self._to_consume.put(HostChunk(host, count, self._rings.frame_shape, copied))

    def _consume_all(self) -> None:
        while True:
            chunk = self._to_consume.get()
            self._consume(chunk.wait())
            self._rings.free_host.put(chunk.slot)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ChannelClosed:
            if work == self._copy_all:
                self._to_consume.finish()
        except BaseException as exc:  # noqa: BLE001 - a thread's edge: raised again on the decode thread
            self._failure = self._failure or exc
            self._close()

    def _close(self) -> None:
        for channel in (self._to_copy, self._to_consume, self._rings.free_device, self._rings.free_host):
            channel.close()
