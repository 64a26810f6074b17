"""Two halves of the network on two streams, the lower one latent frame ahead of the upper.

    ahead  | lower 1 | lower 2 | lower 3 | ...
    stream |         | upper 1 | upper 2 | upper 3

From one kernel to the next a stream pauses for 1.5 to 2 us, and the last blocks of a kernel leave most of the
chip idle. With two streams one computes where the other pauses.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from filmgate.pipeline.decode.fast.layers import Caches, Tape
from filmgate.pipeline.decode.fast.network import Network
from filmgate.pipeline.decode.fast.passes import Pending

Handed = tuple[Pending, torch.cuda.Event | None]
"""What the lower half left behind, and the mark that says when it is there."""


class Relay:
    """Decodes whole frames with a network; on a CPU one half after the other."""

    def __init__(self, network: Network, device: torch.device) -> None:
        self.network = network
        self._ahead: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._ahead = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def decode(self, spans: Iterable[Tensor]) -> Iterator[Tensor]:
        """The frames of each latent frame [1, c, 1, h, w], in order."""
        below: Caches = []
        above: Caches = []
        coming = iter(spans)
        try:
            handed: Handed | None = self._lower(next(coming), Tape(below), after=self._here())
            done: torch.cuda.Event | None = None
            while handed is not None:
                frames = self._upper(handed, Tape(above))
                before, done = done, self._here()
                span = next(coming, None)
                # Beside the frames above, once those before them are out of the way.
                handed = None if span is None else self._lower(span, Tape(below), after=before)
                yield frames
                del frames
        finally:
            if self._ahead is not None:  # what was read there may be freed here, and the other way round
                current = torch.cuda.current_stream(self._ahead.device)
                self._ahead.wait_stream(current)
                current.wait_stream(self._ahead)

    def _here(self) -> torch.cuda.Event | None:
        """The point the caller's stream has come to."""
        return None if self._ahead is None else torch.cuda.current_stream(self._ahead.device).record_event()

    def _lower(self, latents: Tensor, tape: Tape, after: torch.cuda.Event | None) -> Handed:
        if self._ahead is None:
            return self.network.lower(latents, tape), None
        if after is not None:
            self._ahead.wait_event(after)
        with torch.cuda.stream(self._ahead):
            return self.network.lower(latents, tape), self._ahead.record_event()

    def _upper(self, handed: Handed, tape: Tape) -> Tensor:
        pending, is_ready = handed
        if is_ready is not None and self._ahead is not None:
            current = torch.cuda.current_stream(self._ahead.device)
            current.wait_event(is_ready)
            for tensor in (*pending.maps, pending.residual):
                if tensor is not None:
                    tensor.record_stream(current)  # not free for the other stream before this one has read it
        return self.network.upper(pending, tape)
