"""Two loops from decoded chunks to bytes on the host: a plain one, and an overlapped one with the same bytes.

    decode thread   chunk n+1 | convert into a device slot | ready mark ->
    copy thread                  wait for a free host slot | copy on the copy stream | copied mark ->
    encode thread                                              wait for the mark | consume | free the slot

A device slot is reused after the copy that reads it, a host slot after the consumer returns. Only the copy
thread waits for the consumer. A slow encoder stops the decode thread only when every slot is full.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Self

import numpy as np
from torch import Tensor

from filmgate.pipeline.control import Control
from filmgate.pipeline.decode import fallback_decoder
from filmgate.pipeline.decode.base import VideoDecoder
from filmgate.pipeline.transfer.channel import Channel, ChannelClosed
from filmgate.pipeline.transfer.rings import DeviceSlot, HostChunk, NonFiniteFrames, Rings
from filmgate.pipeline.transfer.streams import Mark
from filmgate.pipeline.transfer.timeline import AnyTimeline, NoTimeline
from filmgate.telemetry.logs import Log

log = Log("transfer")

Consumer = Callable[[np.ndarray], None]
"""Receives frames [n, ...] as uint8. The array is valid only during the call."""


def carry_plain(
    chunks: Iterator[Tensor],
    rings: Rings,
    consume: Consumer,
    control: Control,
    timeline: AnyTimeline | None = None,
) -> None:
    """Decode, copy, wait and consume one chunk after the other. The reference for the overlapped loop."""
    timeline = timeline or NoTimeline()
    device, host = rings.free_device.get(), rings.take_host_slot()
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
    """Pass the same bytes to the consumer while decode, copy and consume run at the same time."""
    timeline = timeline or NoTimeline()
    with Conveyor(rings, consume, timeline) as conveyor:
        for before, frames, after in _marked(chunks, rings):
            control.check()
            timeline.between("decode", before, after)
            conveyor.put(frames)


def carry_with_fallback(
    decoder: VideoDecoder, carry: Callable[[VideoDecoder, Consumer, int], None], consume: Consumer
) -> None:
    """Pass the frames of a clip to `consume` with `carry(decoder, consume, start)`.

    If a fast decoder produces NaN or infinity, the exact decoder continues from that frame. The frames before
    it are not decoded again.
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
        exact = fallback_decoder(decoder)
        if exact is None:
            raise
    log.warning("the fast decoder produced NaN or infinity; continuing with the exact decoder", frames=done)
    carry(exact, counting, done)


def _marked(chunks: Iterator[Tensor], rings: Rings) -> Iterator[tuple[Mark, Tensor, Mark]]:
    while True:
        before = rings.streams.mark_compute()
        frames = next(chunks, None)
        if frames is None:
            return
        yield before, frames, rings.streams.mark_compute()


class Conveyor:
    """The copy thread and the encode thread. A failure in one stops all; `put` or the exit raises it."""

    DEPTH = 2  # chunks on the GPU: one running, one queued. More would only delay a cancel.

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
        """Queue a chunk for conversion and copy, then wait until fewer than DEPTH are unfinished."""
        with suppress(ChannelClosed):
            slot = self._rings.free_device.get()
            count = self._rings.fill(slot, frames)
            ready = self._rings.streams.mark_compute()
            self._to_copy.put((slot, count, ready))
            self._ready.append(ready)
            if len(self._ready) == self.DEPTH:
                self._ready.popleft().wait_on_host()
            return
        assert self._failure is not None, "only a failure closes the channels while the decoder runs"
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
        if exc is not None or self._failure is not None:
            # Buffers are freed. Otherwise the consumer has waited for every copy, and the compute stream may
            # already run the next clip.
            self._rings.streams.drain()
        # The traceback of the error references this object and would keep the rings until a collection.
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
            host = self._rings.take_host_slot()
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
        except BaseException as exc:  # noqa: BLE001 - raised again on the decode thread
            self._failure = self._failure or exc
            self._close()

    def _close(self) -> None:
        for channel in (self._to_copy, self._to_consume, self._rings.free_device, self._rings.free_host):
            channel.close()
