"""H.264 settings: delay and bytes by look-ahead, seconds by preset and threads, cost of identical bytes.

The baselines are the defaults of x264, the preset `veryfast`, and CPU-specific code. Random weights decode to
noise, which is the worst case for an encoder; `noise_to_texture` compares it with a picture.
"""

import os
import time
from fractions import Fraction
from statistics import median

import av
import numpy as np

from benchmarks.report import JsonFlag, print_report, run

WIDTH, HEIGHT, FRAMES = 1280, 720, 81
CPU_SPECIFIC = "sliced-threads=1:sync-lookahead=0:bframes=0:rc-lookahead="
LOW_DELAY = f"cpu-independent=1:{CPU_SPECIFIC}"
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
    """Noise, like the output of a decoder with random weights."""
    random = np.random.default_rng(1)
    return [random.integers(60, 190, (HEIGHT * 3 // 2, WIDTH), dtype=np.uint8) for _ in range(FRAMES)]


def moving_texture() -> list[np.ndarray]:
    """A scrolling texture, a shaded ball that bounces over it, and a little sensor noise."""
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
    """Bytes, seconds and frames before the first packet for one set of options."""
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


def main(is_json: JsonFlag = False) -> None:
    """Encode a moving texture and noise with different settings."""
    frames, threads = moving_texture(), min(os.cpu_count() or 1, 8)
    look_ahead = {name: encode(frames, options, threads) for name, options in SETTINGS.items()}
    baseline = look_ahead["defaults"]["bytes"]
    for row in look_ahead.values():
        row["bytes_to_defaults"] = round(row["bytes"] / baseline, 3)
    ratios = {"presets": by_preset(frames, threads), "cpu_independence": cpu_independence(frames, threads)}
    results = {"look_ahead": look_ahead, "threads": by_threads(frames)}
    print_report("encoder", {"threads": threads}, results, ratios, is_json=is_json)


def cpu_independence(texture: list[np.ndarray], threads: int) -> dict[str, dict[str, float]]:
    """The cost of identical bytes on every CPU relative to CPU-specific code: the median of seven pairs."""
    costs = {}
    for name, frames in {"texture": texture, "noise": noise()}.items():
        specific = {"x264-params": f"{CPU_SPECIFIC}2"}
        pairs = [(encode(frames, OURS, threads), encode(frames, specific, threads)) for _ in range(7)]
        costs[name] = {
            what: round(median(ours[what] / other[what] for ours, other in pairs), 3)
            for what in ("seconds", "bytes")
        }
    return costs


def by_threads(texture: list[np.ndarray]) -> dict[str, dict[str, float]]:
    """Slices and frame threads with up to as many threads as there are cores.

    x264 makes at most one slice per 64 lines: 11 slices at this height.
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
    """Seconds and bytes of each preset relative to veryfast, and seconds of noise relative to a picture."""
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
    run(main)
