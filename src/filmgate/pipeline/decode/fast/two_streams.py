"""The two halves of Wan's network on two CUDA streams, the lower half one latent frame ahead of the upper.

    lower stream    | lower 1 | lower 2 | lower 3 | ...
    caller's stream |         | upper 1 | upper 2 | upper 3

Between two kernels a stream pauses for 1.5 to 2 us, and the last blocks of a kernel leave most of the GPU
idle. With two streams, one computes while the other pauses.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from filmgate.pipeline.decode.fast.layers import CacheCursor, Caches
from filmgate.pipeline.decode.fast.passes import ConvOutput
from filmgate.pipeline.decode.fast.wan import WanNetwork
from filmgate.pipeline.transfer.streams import named_stream
from filmgate.pipeline.wipe import wipe

LowerResult = tuple[ConvOutput, torch.cuda.Event | None]
"""The output of the lower half, and the event after which it is ready."""


class TwoStreamNetwork:
    """Decodes whole frames with a network; on a CPU one half after the other."""

    def __init__(self, network: WanNetwork, device: torch.device) -> None:
        self.network = network
        self._lower_stream = named_stream(device, "decode ahead") if device.type == "cuda" else None

    def decode(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        """The frames of each latent frame [1, c, 1, h, w], in order.

        The upper half reads tensors of the lower stream. They are held until the lower stream waits for that
        upper half: the memory is then free in the order of the lower stream, as everything else it frees.
        """
        lower_caches: Caches = []
        upper_caches: Caches = []
        coming = iter(chunks)
        held: list[Tensor | None] = []
        try:
            self._lower_waits_for(self._record())  # the latents
            result: LowerResult | None = self._lower(next(coming), CacheCursor(lower_caches))
            done: torch.cuda.Event | None = None
            while result is not None:
                # The next lower half runs in parallel with this upper half, after the frames before it.
                self._lower_waits_for(done)
                held = [*result[0].maps, result[0].residual]  # frees those of the chunk before
                frames = self._upper(result, CacheCursor(upper_caches))
                done = self._record()
                chunk = next(coming, None)
                result = None if chunk is None else self._lower(chunk, CacheCursor(lower_caches))
                yield frames
                del frames
        finally:
            wipe(upper_caches)
            with torch.cuda.stream(self._lower_stream):  # the stream that reads them; on a CPU there is none
                wipe(lower_caches)
            if self._lower_stream is not None:
                current = torch.cuda.current_stream(self._lower_stream.device)
                self._lower_stream.wait_stream(current)
                current.wait_stream(self._lower_stream)
            held.clear()

    def _record(self) -> torch.cuda.Event | None:
        """An event after everything queued so far on the caller's stream."""
        stream = self._lower_stream
        return None if stream is None else torch.cuda.current_stream(stream.device).record_event()

    def _lower_waits_for(self, event: torch.cuda.Event | None) -> None:
        if self._lower_stream is not None and event is not None:
            self._lower_stream.wait_event(event)

    def _lower(self, latents: Tensor, caches: CacheCursor) -> LowerResult:
        if self._lower_stream is None:
            return self.network.lower(latents, caches), None
        with torch.cuda.stream(self._lower_stream):
            return self.network.lower(latents, caches), self._lower_stream.record_event()

    def _upper(self, result: LowerResult, caches: CacheCursor) -> Tensor:
        output, ready = result
        if ready is not None and self._lower_stream is not None:
            torch.cuda.current_stream(self._lower_stream.device).wait_event(ready)
        return self.network.upper(output, caches)
