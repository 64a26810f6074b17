"""Two loops from decoded chunks to bytes on the host: a plain one, and an overlapped one with the same bytes.

    decode thread   chunk n+1 | convert into a device slot | ready mark ->
    copy thread                  wait for a free host slot | copy on the copy stream | copied mark ->
    encode thread                                              wait for the mark | consume | free the slot

A device slot is reused after the copy that reads it, a host slot after the consumer returns. Only the copy
thread waits for the consumer. A slow encoder stops the decode thread only when every slot is full.

The slots are two rings, one on the device and one of page-locked memory on the host. A slot is one flat
buffer: a flag (are the frames finite?), then the frames. One copy moves both.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from threading import Thread
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from filmgate.errors import DecodeError
from filmgate.pipeline.control import Control
from filmgate.pipeline.decode.base import ClipShape, release_memory
from filmgate.pipeline.memory_errors import out_of_memory_as
from filmgate.pipeline.transfer.channel import Channel, ChannelClosed
from filmgate.pipeline.transfer.colour import Layout
from filmgate.pipeline.transfer.streams import AnyTimeline, Mark, NoTimeline, Streams
from filmgate.telemetry.logs import Log

log = Log("transfer")

FLAG_BYTES = 16  # one is used, the others align the frames
Consumer = Callable[[np.ndarray], None]
"""Receives frames [n, ...] as uint8. The array is valid only during the call."""


class NonFiniteFrames(DecodeError):  # noqa: N818 - not an error if an exact decoder can continue
    """Decoded frames contain NaN or infinity. All frames before them have been consumed."""


@dataclass(slots=True)
class DeviceSlot:
    """The target of a conversion. `copied` marks the copy that must end before the slot is reused.

    `owner` is whose frames it holds: None for memory that was just allocated.
    """

    buffer: Tensor
    copied: Mark | None = None
    owner: str | None = None


@dataclass(slots=True)
class HostSlot:
    """The target of a copy. It can be reused after the encoder has read it."""

    buffer: Tensor
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class HostChunk:
    """A chunk whose copy may still run, and the mark to wait for before it is read."""

    slot: HostSlot
    byte_count: int
    frame_shape: tuple[int, ...]
    copied: Mark

    def wait(self) -> np.ndarray:
        """Wait for the copy and return the frames [n, *frame_shape] as uint8, a view of the slot.

        Raises NonFiniteFrames.
        """
        self.copied.wait_on_host()
        received = self.slot.buffer[: self.byte_count].numpy()
        if not received[0]:
            raise NonFiniteFrames(
                "the decoder produced NaN or infinity; "
                "decode in bfloat16 or float32 (pipeline.dtype) instead of float16"
            )
        return received[FLAG_BYTES:].reshape(-1, *self.frame_shape)


class Rings:
    """Both rings for one clip shape, reused by consecutive clips of that shape.

    `owner` is whose clip runs now, usually a tenant. A slot with frames of another owner is overwritten
    before it is used: on the device in the order of the compute stream, on the host after the encoder has
    read it. Nothing is freed and nothing waits.
    """

    def __init__(self, streams: Streams, layout: Layout, shape: ClipShape, slots: tuple[int, int]) -> None:
        self.streams = streams
        self.layout = layout
        self.frame_shape = layout.frame_shape(shape.height, shape.width)
        self._frame_bytes = prod(self.frame_shape)
        count = FLAG_BYTES + self._frame_bytes * shape.chunk_frames
        self.owner = ""
        device_slots, host_slots = slots
        self.free_device: Channel[DeviceSlot] = Channel(device_slots)
        self.free_host: Channel[HostSlot] = Channel(host_slots)
        with out_of_memory_as(
            f"not enough GPU memory for {device_slots} chunks of {count / 2**20:.0f} MiB; "
            "free memory on the GPU, lower --size, or set pipeline.offload to model"
        ):
            for _ in range(device_slots):
                self.free_device.put(DeviceSlot(streams.device_buffer(count)))
        for _ in range(host_slots):
            self.free_host.put(HostSlot(streams.host_buffer(count)))

    @property
    def is_closed(self) -> bool:
        """Whether a failed transfer has closed them."""
        return self.free_device.is_closed

    def fill(self, slot: DeviceSlot, frames: Tensor) -> int:
        """Convert a chunk into a device slot without synchronising. Returns the number of bytes to copy.

        If GPU memory runs out, converts frame by frame. Raises OutOfMemory if a single frame does not fit.
        """
        if slot.copied is not None:
            self.streams.compute_waits_for(slot.copied)
        if slot.owner != self.owner:
            slot.buffer.zero_()
            slot.owner = self.owner
        count = FLAG_BYTES + self._frame_bytes * frames.shape[1]
        target = slot.buffer[FLAG_BYTES:count].view(-1, *self.frame_shape)
        if not self._has_converted(frames, target, slot):
            log.warning("out of GPU memory for a chunk; converting frame by frame", frames=len(target))
            release_memory()
            self._convert_one_by_one(frames, target, slot)
        return count

    def take_host_slot(self) -> HostSlot:
        """Wait for a slot that the encoder has read."""
        slot = self.free_host.get()
        if slot.owner != self.owner:
            slot.buffer.zero_()
            slot.owner = self.owner
        return slot

    def _has_converted(self, frames: Tensor, target: Tensor, slot: DeviceSlot) -> bool:
        # The traceback of the exception holds tensors, so it must be gone before memory is released.
        try:
            self.layout.convert(frames, target, slot.buffer[:1].fill_(1))
        except torch.OutOfMemoryError:
            return False
        return True

    def _convert_one_by_one(self, frames: Tensor, target: Tensor, slot: DeviceSlot) -> None:
        is_finite = slot.buffer[:1].fill_(1)
        with out_of_memory_as(
            "not enough GPU memory to convert one decoded frame; "
            "free memory on the GPU, lower --size, or set pipeline.offload to model"
        ):
            for n in range(len(target)):
                self.layout.convert(frames[:, n : n + 1], target[n : n + 1], is_finite)


def transfer_plain(
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


def transfer_overlapped(
    chunks: Iterator[Tensor],
    rings: Rings,
    consume: Consumer,
    control: Control,
    timeline: AnyTimeline | None = None,
) -> None:
    """Pass the same bytes to the consumer while decode, copy and consume run at the same time."""
    timeline = timeline or NoTimeline()
    with TransferThreads(rings, consume, timeline) as threads:
        for before, frames, after in _marked(chunks, rings):
            control.check()
            timeline.between("decode", before, after)
            threads.put(frames)
        threads.finish()


def _marked(chunks: Iterator[Tensor], rings: Rings) -> Iterator[tuple[Mark, Tensor, Mark]]:
    while True:
        before = rings.streams.mark_compute()
        frames = next(chunks, None)
        if frames is None:
            return
        yield before, frames, rings.streams.mark_compute()


class TransferThreads:
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

    def finish(self) -> None:
        """Wait until every chunk has been consumed, or a thread has failed."""
        self._to_copy.finish()
        for thread in self._threads:
            thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:
            self._close()
        self.finish()
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
