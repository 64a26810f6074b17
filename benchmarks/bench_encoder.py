"""H.264 settings, as one JSON line.

Frames held back and bytes by look-ahead, seconds by preset and by threads, the price of the same bytes on
every CPU. Seconds are of interest relative to each other: a decoder with random weights makes noise, the most
an encoder can be given, and `noise_to_texture` says how much more that is.
"""

import json
import os
import platform
import time
from fractions import Fraction
from statistics import median

import av
import numpy as np

WIDTH, HEIGHT, FRAMES = 1280, 720, 81
BY_CPU = "sliced-threads=1:sync-lookahead=0:bframes=0:rc-lookahead="
LOW_DELAY = f"cpu-independent=1:{BY_CPU}"
SETTINGS = {
    "defaults": {},
    "zerolatency": {"tune": "zerolatency"},
    **{f"slices, look-ahead {n}": {"x264-params": f"{LOW_DELAY}{n}"} for n in (1, 2, 3, 8)},
}
WHOLE_FRAMES = LOW_DELAY.replace("sliced-threads=1", "sliced-threads=0")
THREADS = (1, 2, 4, 8, 12, 16)
PRESETS = ("veryfast", "superfast", "ultrafast")
OURS = {"x264-params": f"{LOW_DELAY}2"}


def noise() -> list[np.ndarray]:
    """What random weights decode to, as far as an encoder can tell."""
    random = np.random.default_rng(1)
    return [random.integers(60, 190, (HEIGHT * 3 // 2, WIDTH), dtype=np.uint8) for _ in range(FRAMES)]


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
    about = {"bench": "encoder", "machine": platform.machine(), "threads": threads}
    found = {"results": results, "presets": by_preset(frames, threads), "by_threads": by_threads(frames)}
    print(json.dumps({**about, **found, "independence": price_of_independence(frames, threads)}))


def price_of_independence(texture: list[np.ndarray], threads: int) -> dict[str, dict[str, float]]:
    """What the same bytes on every CPU cost, over code that is the CPU's own: seconds of seven pairs."""
    prices = {}
    for name, frames in {"texture": texture, "noise": noise()}.items():
        its_own = {"x264-params": f"{BY_CPU}2"}
        pairs = [(encode(frames, OURS, threads), encode(frames, its_own, threads)) for _ in range(7)]
        prices[name] = {
            what: round(median(ours[what] / other[what] for ours, other in pairs), 3)
            for what in ("seconds", "bytes")
        }
    return prices


def by_threads(texture: list[np.ndarray]) -> dict[str, dict[str, float]]:
    """Slices against frame threads, for as many threads as there are cores.

    x264 makes at most one slice for every 64 lines: 11 of these.
    """
    cores, noisy = os.cpu_count() or 1, noise()
    rows = {}
    for name, options in {"slices": OURS, "frames": {"x264-params": f"{WHOLE_FRAMES}2"}}.items():
        for threads in (n for n in THREADS if n <= cores):
            hard, easy = (encode(frames, options, threads) for frames in (noisy, texture))
            rows[f"{threads} {name}"] = {
                "noise_seconds": round(hard["seconds"], 3),
                "texture_seconds": round(easy["seconds"], 3),
                "texture_bytes": easy["bytes"],
                "first_packet_after_frames": hard["first_packet_after_frames"],
            }
    return rows


def by_preset(texture: list[np.ndarray], threads: int) -> dict[str, dict[str, float]]:
    """Seconds and bytes of each preset relative to veryfast, and what noise costs over a picture."""
    pictures = {"texture": texture, "noise": noise()}
    rows = {
        (name, preset): encode(frames, {**OURS, "preset": preset}, threads)
        for preset in PRESETS
        for name, frames in pictures.items()
    }
    return {
        preset: {
            **{
                f"{name}_{what}": round(rows[name, preset][what] / rows[name, PRESETS[0]][what], 3)
                for name in pictures
                for what in ("seconds", "bytes")
            },
            "noise_to_texture": round(
                rows["noise", preset]["seconds"] / rows["texture", preset]["seconds"], 2
            ),
        }
        for preset in PRESETS
    }


if __name__ == "__main__":
    main()
