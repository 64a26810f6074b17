"""A runner that encodes noise with the real encoder: large clips in little time."""

from functools import partial

import numpy as np

from filmgate.pipeline.encode.encoder import ClipEncoder, EncodeOptions
from filmgate.pipeline.transfer.channel import pull
from filmgate.worker.base import ClipSource, EarlyClip, Fragment
from tests.pattern_runner import PatternRunner
from tests.spools import spooled_clip

WIDTH, HEIGHT = 1280, 720


class NoiseRunner(PatternRunner):
    """About 1.7 MB per frame."""

    def render(self, task):
        yield from pull(partial(self._encode, task.spec.frames), capacity=4, stop=int, name="filmgate-noise")

    def _encode(self, frames, emit):
        noise = np.random.default_rng(0).integers(16, 236, (4, HEIGHT * 3 // 2, WIDTH), dtype=np.uint8)
        options = EncodeOptions(encoder="software", preset="ultrafast", crf=1)
        spool = spooled_clip(frames, on_fragment=lambda data: emit(Fragment(data)))
        try:
            emit(EarlyClip(spool.head_bytes, spool.follow, spool.head, spool.close))
            encoder = ClipEncoder(spool, (WIDTH, HEIGHT), frames, options)
            for number in range(frames):
                encoder.write(noise[number % 4][None])
            encoder.finish()
            spool.publish()
        except BaseException:
            spool.close()
            raise
        emit(ClipSource(spool.chunks, spool.close))
