"""The memory ladder: when memory runs out, decoding continues on the next rung of the same clip."""

import logging
import weakref

import pytest
import torch

from filmgate.errors import OutOfMemory
from filmgate.pipeline.decode.base import WHOLE_FRAME, ClipShape, Rung, decode_frames
from filmgate.pipeline.decode.causal import CausalDecoder, Wan

RUNGS = [WHOLE_FRAME, Rung("tiles", 256), Rung("small tiles", 128)]
FRAMES = 12


class CountingDecoder:
    """Yields frames that contain their number, in chunks of a length per rung, and fails at a given frame."""

    def __init__(self, fails_at: dict[str, int], chunk_frames: dict[str, int] | None = None) -> None:
        self._fails_at = fails_at
        self._chunk_frames = chunk_frames or {}
        self.held: list[weakref.ref] = []

    def to_vae_latents(self, latents):
        return latents

    def shape(self, latents):
        return ClipShape(FRAMES, 1, 1, FRAMES)

    def rungs(self, latents):
        return RUNGS

    def chunks(self, latents, rung):
        cache = torch.zeros(1000)
        self.held.append(weakref.ref(cache))
        length = self._chunk_frames.get(rung.name, 1)
        for start in range(0, FRAMES, length):
            if self._fails_at.get(rung.name, FRAMES) <= start:
                self._run_out(cache)
            numbers = torch.arange(start, min(start + length, FRAMES), dtype=torch.float32)
            yield numbers.view(1, -1, 1, 1).expand(3, -1, 1, 1)

    def _run_out(self, cache):
        activations = cache + 1  # a tensor of a layer at the time the allocation fails
        self.held.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")


def numbers(decoder, on_rung=None):
    chunks = decode_frames(decoder, torch.zeros(1), on_rung)
    return [int(frame) for chunk in chunks for frame in chunk[0, :, 0, 0]]


@pytest.mark.parametrize("fails_at", range(FRAMES))
def test_every_frame_is_yielded_once_when_memory_runs_out(fails_at):
    taken = []
    decoder = CountingDecoder({WHOLE_FRAME.name: fails_at})
    assert numbers(decoder, taken.append) == list(range(FRAMES))
    assert taken == RUNGS[:2]


@pytest.mark.parametrize("lengths", [(1, 4, 5), (4, 1, 3), (5, 12, 7)])
def test_rungs_with_other_chunk_lengths_yield_every_frame_once(lengths):
    names = [rung.name for rung in RUNGS]
    decoder = CountingDecoder(
        dict(zip(names[:2], (5, 8), strict=True)), dict(zip(names, lengths, strict=True))
    )
    assert numbers(decoder) == list(range(FRAMES))


def test_the_error_names_the_rungs_tried_and_what_to_do(caplog):
    decoder = CountingDecoder({rung.name: 3 for rung in RUNGS})
    with caplog.at_level(logging.WARNING), pytest.raises(OutOfMemory) as caught:
        numbers(decoder)
    assert str(caught.value) == (
        "the clip does not fit into GPU memory even as small tiles (tried: whole frame, tiles, small tiles); "
        "free memory on the GPU, lower --size, or set pipeline.offload to model"
    )
    assert [record.fields["rung"] for record in caplog.records] == [rung.name for rung in RUNGS]
    assert {record.fields["frame"] for record in caplog.records} == {3}


def test_memory_of_a_failed_rung_is_freed_before_the_next_starts():
    decoder = CountingDecoder({WHOLE_FRAME.name: 3})
    alive_at_start = []
    numbers(decoder, lambda rung: alive_at_start.append([ref() is not None for ref in decoder.held]))
    assert alive_at_start == [[], [False, False]]


def test_other_errors_are_raised():
    class Broken(CountingDecoder):
        def _run_out(self, cache):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        numbers(Broken({WHOLE_FRAME.name: 2}))


def test_a_real_vae_continues_with_streaming_tiles(vae):
    wan = Wan(vae("wan2.1"))
    wan.tile_pixels = (32,)
    decoder, latents = CausalDecoder(wan), torch.randn(1, 4, 4, 5, 7)
    whole, tiles = decoder.rungs(latents)
    with torch.inference_mode():
        expected = [torch.cat(list(decoder.chunks(latents, rung)), dim=1) for rung in (whole, tiles)]
    calls = []

    def run_out(*_):
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError

    hook = vae("wan2.1").decoder.register_forward_hook(run_out)
    try:
        frames = torch.cat(list(decode_frames(decoder, latents)), dim=1)
    finally:
        hook.remove()
    assert torch.equal(frames[:, :5], expected[0][:, :5])
    assert torch.equal(frames[:, 5:], expected[1][:, 5:])
