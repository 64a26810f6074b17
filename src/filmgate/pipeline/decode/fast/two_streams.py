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
from filmgate.pipeline.decode.fast.network import Network
from filmgate.pipeline.decode.fast.passes import ConvOutput
from filmgate.pipeline.wipe import wipe

LowerResult = tuple[ConvOutput, torch.cuda.Event | None]
"""The output of the lower half, and the event after which it is ready."""


class TwoStreamNetwork:
    """Decodes whole frames with a network; on a CPU one half after the other."""

    def __init__(self, network: Network, device: torch.device) -> None:
        self.network = network
        self._lower_stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._lower_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def decode(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        """The frames of each latent frame [1, c, 1, h, w], in order."""
        lower_caches: Caches = []
        upper_caches: Caches = []
        coming = iter(chunks)
        try:
            result: LowerResult | None = self._lower(
                next(coming), CacheCursor(lower_caches), after=self._record()
            )
            done: torch.cuda.Event | None = None
            while result is not None:
                frames = self._upper(result, CacheCursor(upper_caches))
                before, done = done, self._record()
                chunk = next(coming, None)
                if chunk is None:
                    # Memory that both streams have used is free only when the device is done with it: it may
                    # be given out again after the free memory was overwritten for the next tenant.
                    wipe([*result[0].maps, result[0].residual])
                # Runs in parallel with the upper half above, after the frames before it are done.
                result = (
                    None if chunk is None else self._lower(chunk, CacheCursor(lower_caches), after=before)
                )
                yield frames
                del frames
        finally:
            wipe(upper_caches)
            with torch.cuda.stream(self._lower_stream):  # the stream that reads them; on a CPU there is none
                wipe(lower_caches)
            if self._lower_stream is not None:  # memory read on one stream may be freed on the other
                current = torch.cuda.current_stream(self._lower_stream.device)
                self._lower_stream.wait_stream(current)
                current.wait_stream(self._lower_stream)

    def _record(self) -> torch.cuda.Event | None:
        """An event after everything queued so far on the caller's stream."""
        stream = self._lower_stream
        return None if stream is None else torch.cuda.current_stream(stream.device).record_event()

    def _lower(self, latents: Tensor, caches: CacheCursor, after: torch.cuda.Event | None) -> LowerResult:
        if self._lower_stream is None:
            return self.network.lower(latents, caches), None
        if after is not None:
            self._lower_stream.wait_event(after)
        with torch.cuda.stream(self._lower_stream):
            return self.network.lower(latents, caches), self._lower_stream.record_event()

    def _upper(self, result: LowerResult, caches: CacheCursor) -> Tensor:
        output, ready = result
        if ready is not None and self._lower_stream is not None:
            current = torch.cuda.current_stream(self._lower_stream.device)
            current.wait_event(ready)
            for tensor in (*output.maps, output.residual):
                if tensor is not None:
                    # The lower stream must not reuse the memory before this one has read it.
                    tensor.record_stream(current)
        return self.network.upper(output, caches)
