"""The buffers between decoder and encoder: one ring on the device, one page-locked ring on the host.

A slot is one flat buffer: a flag (are the frames finite?), then the frames. One copy moves both.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from filmgate.errors import DecodeError, OutOfMemory
from filmgate.pipeline.decode.base import ClipShape
from filmgate.pipeline.decode.ladder import release_memory
from filmgate.pipeline.transfer.channel import Channel
from filmgate.pipeline.transfer.colour import Layout
from filmgate.pipeline.transfer.streams import Mark, Streams
from filmgate.telemetry.logs import Log

log = Log("transfer")

FLAG_BYTES = 16  # one is used, the others align the frames


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
        try:
            for _ in range(device_slots):
                self.free_device.put(DeviceSlot(streams.device_buffer(count)))
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(
                f"not enough GPU memory for {device_slots} chunks of {count / 2**20:.0f} MiB; "
                "free memory on the GPU, lower --size, or set pipeline.offload to model"
            ) from exc
        for _ in range(host_slots):
            self.free_host.put(HostSlot(streams.host_buffer(count)))

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
        try:
            for n in range(len(target)):
                self.layout.convert(frames[:, n : n + 1], target[n : n + 1], is_finite)
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(
                "not enough GPU memory to convert one decoded frame; "
                "free memory on the GPU, lower --size, or set pipeline.offload to model"
            ) from exc
