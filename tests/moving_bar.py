"""Frames for tests of the encoder, and the frames that a clip shows."""

import io

import av
import numpy as np

WIDTH, HEIGHT = 64, 48


def moving(count):
    """A bright bar that moves across a gradient, as YUV planes."""
    frames = np.full((count, HEIGHT * 3 // 2, WIDTH), 128, np.uint8)
    frames[:, :HEIGHT] = np.linspace(40, 120, WIDTH)
    for n in range(count):
        frames[n, :HEIGHT, n % WIDTH : n % WIDTH + 6] = 220
    return frames


def shown(data: bytes) -> list[np.ndarray]:
    with av.open(io.BytesIO(data)) as clip:
        return [frame.to_ndarray() for frame in clip.decode(video=0)]
