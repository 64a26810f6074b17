"""The time a clip takes after its last frame.

The frames are 1280x720 noise, which makes the largest file. `remux` is the baseline (ADR 5): the fragments
are copied into a second file with the index first.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import av
import numpy as np
import typer

from benchmarks.report import JsonFlag, print_report, run
from filmgate.pipeline.encode.clip_file import ClipFile
from filmgate.pipeline.encode.encoder import ClipEncoder, EncodeOptions

WIDTH, HEIGHT = 1280, 720


def measure(folder: Path, frames: int) -> dict[str, float]:
    """The seconds of each phase, for one clip written as `save_video` does."""
    random = np.random.default_rng(0)
    noise = [random.integers(16, 236, (1, HEIGHT * 3 // 2, WIDTH), dtype=np.uint8) for _ in range(4)]
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        started = time.perf_counter()
        work()
        seconds[name] = time.perf_counter() - started

    with (folder / "live.mp4").open("wb") as live:
        clip = ClipFile(folder / "clip.mp4", {}, live.write)  # type: ignore[arg-type]
        options = EncodeOptions(encoder="software")
        opened = time.perf_counter()
        encoder = ClipEncoder(clip, (WIDTH, HEIGHT), frames, options)
        seconds["open"] = time.perf_counter() - opened
        timed("encode", lambda: [encoder.write(noise[n % 4]) for n in range(frames)])  # type: ignore[func-returns-value]
        timed("flush_and_index", encoder.finish)
        timed("publish", clip.publish)
    timed("remux", lambda: remux(folder / "live.mp4", folder / "again.mp4"))
    timed("fsync_of_the_remuxed", lambda: sync(folder / "again.mp4"))
    return {**seconds, "megabytes": (folder / "clip.mp4").stat().st_size / 1e6}


def remux(source: Path, target: Path) -> None:
    flags = {"movflags": "+faststart"}
    with av.open(str(source)) as fragments, av.open(str(target), "w", format="mp4", options=flags) as clip:
        (video,) = fragments.streams.video
        copied = clip.add_stream_from_template(video, opaque=True)
        for packet in fragments.demux(video):
            if packet.dts is not None:
                packet.stream = copied
                clip.mux(packet)


def sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def main(
    frames: Annotated[int, typer.Option(min=1, help="Length of the clip.")] = 81, is_json: JsonFlag = False
) -> None:
    """Write one clip and time each phase."""
    with TemporaryDirectory() as folder:
        results = measure(Path(folder), frames)
    phases = ("open", "flush_and_index", "publish", "remux", "fsync_of_the_remuxed")
    ratios = {f"{name}_to_encode": round(results[name] / results["encode"], 4) for name in phases}
    print_report("finish", {"frames": frames}, results, ratios, is_json=is_json)


if __name__ == "__main__":
    run(main)
