"""The time of each part of the fast decoder and its lower bound: the tables of docs/decoder.md.

    python -m benchmarks.bench_roofline --vae wan2.1 --size 1280x720 --frames 81
    python -m benchmarks.bench_roofline --vae cogvideox --size 720x480 --frames 49

Decodes one clip on one stream with a pair of events around every convolution, pass and attention. The bounds
are those of an H200: 790 TFLOP/s of a large half-precision matrix product and 4.8 TB/s of memory.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from unittest import mock

import torch
from torch import Tensor

from filmgate.pipeline.bench.provenance import provenance
from filmgate.pipeline.bench.vaes import build_vae, random_latents
from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.decode.fast import cogvideox, wan
from filmgate.pipeline.decode.fast.cogvideox import CogVideoXNetwork
from filmgate.pipeline.decode.fast.decoder import FastCogVideoX, FastWan, cached_network, two_stream_network
from filmgate.pipeline.decode.fast.group_passes import CausalCache, Modulation
from filmgate.pipeline.decode.fast.passes import ConvOutput, InputLayout, InputSpec
from filmgate.pipeline.loading.memory import name_device
from filmgate.settings import PipelineSettings

T = TypeVar("T")

FLOPS_PER_SECOND = 790e12
BYTES_PER_SECOND = 4.8e12


class Timestamp:
    """A point in time on the GPU, or on the host if there is no GPU."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if torch.cuda.is_available() else None
        self._at = time.perf_counter()
        if self._event is not None:
            self._event.record()

    def seconds_until(self, other: "Timestamp") -> float:
        if self._event is None or other._event is None:  # noqa: SLF001 - its own class
            return other._at - self._at  # noqa: SLF001
        return self._event.elapsed_time(other._event) / 1000  # noqa: SLF001


@dataclass
class Part:
    """All calls of one kind at one shape."""

    flops: float = 0.0
    bytes_moved: float = 0.0
    spans: list[tuple[Timestamp, Timestamp]] = field(default_factory=list)

    def seconds(self) -> float:
        return sum(start.seconds_until(stop) for start, stop in self.spans)

    def row(self, name: str, whole: float) -> str:
        seconds = self.seconds()
        by_flops, by_bytes = self.flops / FLOPS_PER_SECOND, self.bytes_moved / BYTES_PER_SECOND
        rate = f"{self.flops / seconds / 1e12:.0f} TFLOP/s" if self.flops else ""
        if by_bytes > by_flops:
            rate = f"{self.bytes_moved / seconds / 1e12:.1f} TB/s"
        bound = "arithmetic" if by_flops >= by_bytes else "memory"
        at_best = max(by_flops, by_bytes)
        return (
            f"| {name} | {len(self.spans)} | {seconds * 1000:.1f} | {seconds / whole:.1%} "
            f"| {bound}, {at_best * 1000:.1f} ms | {rate} |"
        )


class Meter:
    """Measures calls by name."""

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}

    def timed(self, name: str, call: Callable[[], T], *, flops: float = 0.0, bytes_moved: float = 0.0) -> T:
        part = self.parts.setdefault(name, Part())
        start = Timestamp()
        result = call()
        part.spans.append((start, Timestamp()))
        part.flops += flops
        part.bytes_moved += bytes_moved
        return result

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Patch the network to measure every convolution, pass and attention."""
        convolve, combine, attend = wan.convolve, wan.combine, wan.attend  # type: ignore[attr-defined]

        def convolution(frames: Tensor, weight: Tensor, padding: int) -> Tensor:
            count, height, width, _ = frames.shape
            out, into, *kernel = weight.shape
            name = f"convolution {into} to {out}, {width}x{height}"
            flops = 2.0 * count * height * width * out * into * kernel[0] * kernel[1]
            bytes_moved = 2.0 * count * height * width * (into + out)
            return self.timed(
                name, lambda: convolve(frames, weight, padding), flops=flops, bytes_moved=bytes_moved
            )

        def one_pass(
            output: ConvOutput, spec: InputSpec | None, *, keep: bool
        ) -> tuple[Tensor, list[Tensor]]:
            _, height, width, channels = output.shape
            read = [*output.maps, *([] if output.residual is None else [output.residual])]
            cache = None if spec is None else spec.cache
            bytes_moved = sum(t.nbytes for t in read) + (0 if cache is None else 2 * cache.nbytes)
            name = f"combine, {channels} channels, {width}x{height}"
            kept, inputs = self.timed(name, lambda: combine(output, spec, keep=keep), bytes_moved=bytes_moved)
            self.parts[name].bytes_moved += sum(t.nbytes for t in (kept, *inputs))
            return kept, inputs

        def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            flops = 4.0 * query.shape[1] * key.shape[1] * query.shape[2] * len(query)
            return self.timed("attention", lambda: attend(query, key, value), flops=flops)

        with (
            self._attached_to_groups(),
            mock.patch.object(wan, "convolve", convolution),
            mock.patch.object(cogvideox, "convolve", convolution),
            mock.patch.object(wan, "combine", one_pass),
            mock.patch.object(wan, "attend", attention),
        ):
            yield

    @contextmanager
    def _attached_to_groups(self) -> Iterator[None]:
        """Patch the two passes around each norm of CogVideoX."""
        to_frames_and_sums, normalise = cogvideox.to_frames_and_sums, cogvideox.normalise  # type: ignore[attr-defined]

        def first_pass(output: ConvOutput, groups: int, repeats: int = 1) -> tuple[Tensor, Tensor]:
            _, height, width, channels = output.shape
            read = [*output.maps, *([] if output.residual is None else [output.residual])]
            name, bytes_moved = f"sums, {channels} channels, {width}x{height}", sum(t.nbytes for t in read)
            kept, sums = self.timed(
                name, lambda: to_frames_and_sums(output, groups, repeats), bytes_moved=bytes_moved
            )
            self.parts[name].bytes_moved += kept.nbytes + sums.nbytes
            return kept, sums

        def second_pass(
            frames: Tensor, modulation: Modulation, layout: InputLayout, cache: CausalCache | None = None
        ) -> list[Tensor]:
            _, height, width, channels = frames.shape
            name = f"normalise, {channels} channels, {width}x{height}"
            bytes_moved = frames.nbytes + (0 if cache is None else 2 * cache.frames.nbytes)
            inputs = self.timed(
                name, lambda: normalise(frames, modulation, layout, cache), bytes_moved=bytes_moved
            )
            self.parts[name].bytes_moved += sum(t.nbytes for t in inputs)
            return inputs

        with (
            mock.patch.object(cogvideox, "to_frames_and_sums", first_pass),
            mock.patch.object(cogvideox, "normalise", second_pass),
        ):
            yield


def on_one_stream(vae: Vae, dtype: torch.dtype) -> FastWan | FastCogVideoX:
    """The VAE on the fast path, without the second stream."""
    if type(vae).__name__ == "AutoencoderKLCogVideoX":
        return FastCogVideoX(vae, cached_network(vae, dtype, CogVideoXNetwork))
    return FastWan(vae, two_stream_network(vae, dtype).network)


@torch.inference_mode()
def measure(vae_name: str, size: tuple[int, int], frames: int, device: torch.device) -> tuple[float, Meter]:
    """The seconds of the whole clip, and the meter with those of its parts."""
    vae = build_vae(vae_name, device, torch.bfloat16)
    fast = on_one_stream(vae, torch.float16 if device.type == "cuda" else torch.float32)
    latents = fast.to_vae_latents(random_latents(vae_name, size, frames, vae))
    seconds, meter = 0.0, Meter()
    for meter in (Meter(), Meter()):  # the first is a warm-up
        cache = None
        with meter.attached():
            start = Timestamp()
            for first, last in fast.chunk_ranges(latents.shape[2]):
                _, cache = fast.step(latents[:, :, first:last], cache)
            stop = Timestamp()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = start.seconds_until(stop)
    return seconds, meter


def table(seconds: float, meter: Meter) -> str:
    rows = sorted(meter.parts.items(), key=lambda item: -item[1].seconds())
    lines = ["| part | calls | ms | share | bound | reached |", "|---|---|---|---|---|---|"]
    lines += [part.row(name, seconds) for name, part in rows]
    rest = seconds - sum(part.seconds() for part in meter.parts.values())
    lines.append(f"| everything else | | {rest * 1000:.1f} | {rest / seconds:.1%} | | |")
    lines.append(f"| the whole clip | | {seconds * 1000:.1f} | 100.0% | | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vae", default="wan2.1")
    parser.add_argument("--size", default="1280x720")
    parser.add_argument("--frames", type=int, default=81)
    options = parser.parse_args()
    width, height = (int(side) for side in options.size.split("x"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    measured = measure(options.vae, (width, height), options.frames, device)
    about = provenance() | {"device": name_device(PipelineSettings()), **vars(options)}
    print(f"{json.dumps(about)}\n\n{table(*measured)}")


if __name__ == "__main__":
    main()
