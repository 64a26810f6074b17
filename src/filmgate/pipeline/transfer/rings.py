"""The buffers between decoder and encoder: a ring on the device, a page-locked one on the host.

A slot is one flat run of bytes: a flag (are the frames numbers?) and then the frames, so one copy moves both.
"""

import logging
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

log = logging.getLogger(__name__)

FLAG_BYTES = 16  # one is used; the rest keeps the frames aligned


class NonFiniteFrames(DecodeError):  # noqa: N818 - a signal where a twin can go on
    """Decoded frames that are not numbers. Everything before them has been consumed."""


@dataclass(slots=True)
class DeviceSlot:
    """Where a chunk is converted to. `copied` guards reuse: the copy that still reads this slot."""

    buffer: Tensor
    copied: Mark | None = None


@dataclass(frozen=True, slots=True)
class HostSlot:
    """Where a chunk is copied to. Free again when the encoder has read it."""

    buffer: Tensor


@dataclass(frozen=True, slots=True)
class HostChunk:
    """A chunk that may still be on its way, with the mark that makes it safe to read."""

    slot: HostSlot
    byte_count: int
    frame_shape: tuple[int, ...]
    copied: Mark

    def wait(self) -> np.ndarray:
        """The frames [n, *frame_shape] as uint8, once copied; a view, valid until the slot is given back."""
        self.copied.wait_on_host()
        received = self.slot.buffer[: self.byte_count].numpy()
        if not received[0]:
            raise NonFiniteFrames(
                "the decoder produced NaN or infinity; "
                "decode in bfloat16 or float32 (pipeline.dtype) instead of float16"
            )
        return received[FLAG_BYTES:].reshape(-1, *self.frame_shape)


class Rings:
    """Both rings for one clip shape, kept as long as clips of that shape keep coming."""

    def __init__(self, streams: Streams, layout: Layout, shape: ClipShape, slots: tuple[int, int]) -> None:
        self.streams = streams
        self.layout = layout
        self.frame_shape = layout.frame_shape(shape.height, shape.width)
        self._frame_bytes = prod(self.frame_shape)
        count = FLAG_BYTES + self._frame_bytes * shape.chunk_frames
        device_slots, host_slots = slots
        self.free_device: Channel[DeviceSlot] = Channel(device_slots)
        self.free_host: Channel[HostSlot] = Channel(host_slots)
        try:
            for _ in range(device_slots):
                self.free_device.put(DeviceSlot(streams.device_buffer(count)))
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(
                f"GPU memory is too full to hold {device_slots} chunks of {count / 2**20:.0f} MiB; "
                "free memory on the GPU, lower --size, or set pipeline.offload to model"
            ) from exc
        for _ in range(host_slots):
            self.free_host.put(HostSlot(streams.host_buffer(count)))

    def fill(self, slot: DeviceSlot, frames: Tensor) -> int:
        """Convert a chunk into a device slot, without synchronising; the number of bytes to copy.

        Out of memory here is a rung of its own: frame by frame. Raises OutOfMemory when not even one fits.
        """
        if slot.copied is not None:
            self.streams.compute_waits_for(slot.copied)
        count = FLAG_BYTES + self._frame_bytes * frames.shape[1]
        target = slot.buffer[FLAG_BYTES:count].view(-1, *self.frame_shape)
        if not self._has_converted(frames, target, slot):
            log.warning("transfer: out of GPU memory while converting %d frames, one by one", len(target))
            release_memory()
            self._convert_one_by_one(frames, target, slot)
        return count

    def _has_converted(self, frames: Tensor, target: Tensor, slot: DeviceSlot) -> bool:
        # The exception must be gone before memory is released: its traceback holds the failed tensors.
        try:
            self.layout.convert(frames, target, slot.buffer[:1].fill_(1))
        except torch.OutOfMemoryError:
            return False
        return True

    def _convert_one_by_one(self, frames: Tensor, target: Tensor, slot: DeviceSlot) -> None:
        sound = slot.buffer[:1].fill_(1)
        try:
            for n in range(len(target)):
                self.layout.convert(frames[:, n : n + 1], target[n : n + 1], sound)
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(
                "GPU memory is too full to convert one decoded frame; "
                "free memory on the GPU, lower --size, or set pipeline.offload to model"
            ) from exc
