"""The memory ladder: when GPU memory runs out, decoding continues on the next rung of the same clip."""

import gc
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from filmgate.errors import OutOfMemory
from filmgate.pipeline.decode.base import Rung, VideoDecoder
from filmgate.telemetry.logs import Log

log = Log("decode")


@torch.inference_mode()
def decode_frames(
    decoder: VideoDecoder,
    latents: Tensor,
    on_rung: Callable[[Rung], None] | None = None,
    check: Callable[[], None] | None = None,
    start: int = 0,
) -> Iterator[Tensor]:
    """Yield every frame from `start` once, in order, on the highest rung that fits in memory.

    A lower rung decodes the clip from the start to rebuild its caches, and yields only frames that have not
    been yielded yet. `check` runs after each chunk is queued and before it is yielded; it may raise to reject
    the latents. Raises OutOfMemory if the last rung does not fit.
    """
    tried: list[str] = []
    done = start
    for rung in decoder.rungs(latents):
        if on_rung is not None:
            on_rung(rung)
        at = 0
        chunks = decoder.chunks(latents, rung)
        while not isinstance(frames := _next_chunk(chunks), _NoMemory):
            if check is not None:
                check()
            if frames is None:
                return
            at += frames.shape[1]
            if at > done:
                fresh, done = at - done, at
                yield frames[:, -fresh:]
            del frames  # the decoder may need this memory for the next chunk
        tried.append(rung.name)
        log.warning("GPU memory ran out on this rung of the memory ladder", rung=rung.name, frame=done)
        del chunks
        release_memory()
    raise OutOfMemory(
        f"the clip does not fit into GPU memory even as {tried[-1]} (tried: {', '.join(tried)}); "
        "free memory on the GPU, lower --size, or set pipeline.offload to model"
    )


class _NoMemory:
    """Returned instead of a chunk that does not fit in memory."""


def _next_chunk(chunks: Iterator[Tensor]) -> Tensor | _NoMemory | None:
    # The exception must be gone before memory is released: its traceback references the layers' tensors.
    try:
        return next(chunks, None)
    except torch.OutOfMemoryError:
        return _NoMemory()


def release_memory() -> None:
    """Return unused GPU memory to the driver."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
