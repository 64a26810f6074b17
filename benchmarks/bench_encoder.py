"""H.264 settings: how many frames the encoder holds back, and what that costs in bytes. One JSON line."""

import json
import os
import platform
import time
from fractions import Fraction

import av
import numpy as np

WIDTH, HEIGHT, FRAMES = 1280, 720, 81
LOW_DELAY = "sliced-threads=1:sync-lookahead=0:bframes=0:rc-lookahead="
SETTINGS = {
    "defaults": {},
    "zerolatency": {"tune": "zerolatency"},
    **{f"slices, look-ahead {n}": {"x264-params": f"{LOW_DELAY}{n}"} for n in (1, 2, 3, 8)},
}


def moving_texture() -> list[np.ndarray]:
    """Soft texture that scrolls, a shaded ball that bounces over it, and a little sensor noise."""
    random = np.random.default_rng(0)
    coarse = random.random((HEIGHT // 40, WIDTH // 40))
    texture = np.kron(coarse, np.ones((40, 40))) * 160 + 40
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    frames = []
    for n in range(FRAMES):
        x, y = 200 + 10 * n, HEIGHT / 2 + 150 * np.sin(n / 8)
        ball = (columns - x) ** 2 + (rows - y) ** 2 < 90**2
        luma = np.where(ball, 200 - (columns - x + rows - y) * 0.3, np.roll(texture, (2 * n, 3 * n), (0, 1)))
        planes = np.full((HEIGHT * 3 // 2, WIDTH), 128, np.uint8)
        planes[:HEIGHT] = np.clip(luma + random.normal(0, 1, luma.shape), 16, 235)
        frames.append(planes)
    return frames


def encode(frames: list[np.ndarray], options: dict[str, str], threads: int) -> dict[str, float]:
    """Bytes, frames held back and seconds for one way to encode."""
    context = av.CodecContext.create("libx264", "w")
    context.width, context.height, context.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    context.time_base, context.framerate, context.thread_count = Fraction(1, 16), Fraction(16), threads
    context.options = {"preset": "veryfast", "crf": "18", **options}
    first, size, started = FRAMES, 0, time.perf_counter()
    for n, planes in enumerate([*frames, None]):
        frame = None if planes is None else av.VideoFrame.from_ndarray(planes, format="yuv420p")
        if frame is not None:
            frame.pts = n
        packets = context.encode(frame)
        first = min(first, n + 1) if packets else first
        size += sum(packet.size for packet in packets)
    return {"first_packet_after_frames": first, "bytes": size, "seconds": time.perf_counter() - started}


def main() -> None:
    frames, threads = moving_texture(), min(os.cpu_count() or 1, 8)
    results = {name: encode(frames, options, threads) for name, options in SETTINGS.items()}
    baseline = results["defaults"]["bytes"]
    for row in results.values():
        row["bytes_to_defaults"] = round(row["bytes"] / baseline, 3)
    print(
        json.dumps(
            {"bench": "encoder", "machine": platform.machine(), "threads": threads, "results": results}
        )
    )


if __name__ == "__main__":
    main()
