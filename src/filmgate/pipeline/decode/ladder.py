"""The memory ladder: out of memory means one rung down and on with the clip, never a thrown-away latent."""

import gc
import logging
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from filmgate.errors import OutOfMemory
from filmgate.pipeline.decode.base import Rung, VideoDecoder

log = logging.getLogger(__name__)


@torch.inference_mode()
def decode_frames(
    decoder: VideoDecoder,
    latents: Tensor,
    on_rung: Callable[[Rung], None] | None = None,
    check: Callable[[], None] | None = None,
    start: int = 0,
) -> Iterator[Tensor]:
    """Every frame from `start` once, in order, on the highest rung that fits; OutOfMemory below the last.

    A lower rung starts the clip again to rebuild its caches, and stays silent up to where the higher one got.
    `check` may refuse the latents: it is asked once there is work queued, and before a frame is handed on.
    """
    tried: list[str] = []
    done = start
    for rung in decoder.rungs(latents):
        if on_rung is not None:
            on_rung(rung)
        at = 0
        chunks = decoder.chunks(latents, rung)
        while not isinstance(frames := _next(chunks), _Full):
            if check is not None:
                check()
            if frames is None:
                return
            at += frames.shape[1]
            if at > done:
                fresh, done = at - done, at
                yield frames[:, -fresh:]
            del frames  # the decoder may need these bytes for the next chunk
        tried.append(rung.name)
        log.warning("decode: rung %r ran out of GPU memory at frame %d, one rung down", rung.name, done)
        del chunks
        release_memory()
    raise OutOfMemory(
        f"the clip does not fit into GPU memory even as {tried[-1]} (tried: {', '.join(tried)}); "
        "free memory on the GPU, lower --size, or set pipeline.offload to model"
    )


class _Full:
    """What a chunk that does not fit turns into."""


def _next(chunks: Iterator[Tensor]) -> Tensor | _Full | None:
    # The exception must be gone before memory is released: its traceback holds the layers' tensors.
    try:
        return next(chunks, None)
    except torch.OutOfMemoryError:
        return _Full()


def release_memory() -> None:
    """Give back to the driver what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
