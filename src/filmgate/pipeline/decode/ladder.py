"""The memory ladder: out of memory means one rung down and on with the clip, never a thrown-away latent."""

import gc
import logging
from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum

import torch
from torch import Tensor

from filmgate.errors import OutOfMemory
from filmgate.pipeline.decode.base import PrecisionLost, Rung, VideoDecoder

log = logging.getLogger(__name__)


@torch.inference_mode()
def decode_frames(
    decoder: VideoDecoder, latents: Tensor, on_rung: Callable[[Rung], None] | None = None
) -> Iterator[Tensor]:
    """Every frame once, in order, on the highest rung that fits; raises OutOfMemory below the last.

    A lower rung starts the clip again to rebuild its caches, and stays silent up to where the higher one got.
    Fast rungs go first where there are any; numbers they cannot hold, not memory, lead to the exact ones.
    """
    tried: list[str] = []
    done = 0
    rungs = deque(decoder.rungs(latents))
    is_fast = rungs[0].is_fast
    while rungs:
        rung = rungs.popleft()
        if rung.is_fast != is_fast:
            continue
        if on_rung is not None:
            on_rung(rung)
        at = 0
        chunks = decoder.chunks(latents, rung)
        while not isinstance(frames := _next(chunks), _Stop):
            if frames is None:
                return
            at += frames.shape[1]
            if at > done:
                fresh, done = at - done, at
                yield frames[:, -fresh:]
            del frames  # the decoder may need these bytes for the next chunk
        tried.append(rung.name)
        log.warning("decode: rung %r met %s at frame %d, one rung down", rung.name, frames, done)
        is_fast &= frames is _Stop.FULL
        del chunks
        release_memory()
    raise OutOfMemory(
        f"the clip does not fit into GPU memory even as {tried[-1]} (tried: {', '.join(tried)}); "
        "free memory on the GPU, lower --size, or set pipeline.offload to model"
    )


class _Stop(StrEnum):
    """What a chunk that cannot be had turns into."""

    FULL = "out of GPU memory"
    OUT_OF_RANGE = "numbers beyond half precision"


def _next(chunks: Iterator[Tensor]) -> Tensor | _Stop | None:
    # The exception must be gone before memory is released: its traceback holds the layers' tensors.
    try:
        return next(chunks, None)
    except torch.OutOfMemoryError:
        return _Stop.FULL
    except PrecisionLost:
        return _Stop.OUT_OF_RANGE


def release_memory() -> None:
    """Give back to the driver what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
