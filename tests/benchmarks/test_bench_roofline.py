"""The roofline benchmark measures every part of the fast decoder, and its rows add up to the total."""

import pytest
import torch

from benchmarks.bench_roofline import measure, table


def test_every_convolution_pass_and_attention_is_measured():
    seconds, meter = measure("wan-tiny", (64, 64), 9, torch.device("cpu"))
    kinds = {name.split()[0].rstrip(",") for name in meter.parts}
    assert kinds == {"convolution", "combine", "attention"}
    assert sum(part.seconds() for part in meter.parts.values()) < seconds
    largest = meter.parts["convolution 8 to 8, 64x64"]
    first, later = 4, 4 * 6 * 2  # convolutions per layer: 1 for the first latent frame, 6 for each later one
    assert len(largest.spans) == first + later
    assert largest.flops == (first + later) * 2 * 64 * 64 * 8 * 8 * 9
    assert len(meter.parts["attention"].spans) == 3


def test_both_passes_around_a_norm_of_cogvideox_are_measured():
    seconds, meter = measure("cogvideox-tiny", (64, 64), 9, torch.device("cpu"))
    kinds = {name.split()[0].rstrip(",") for name in meter.parts}
    assert kinds == {"convolution", "sums", "normalise"}
    assert sum(part.seconds() for part in meter.parts.values()) < seconds
    layers, single, fours = 4, 1, 2 * 6  # nine frames: the first alone, then two groups of four
    assert len(meter.parts["convolution 8 to 8, 64x64"].spans) == layers * (single + fours)
    head, upsampling = 3, 3
    assert len(meter.parts["normalise, 8 channels, 64x64"].spans) == layers * 3 + head
    assert len(meter.parts["sums, 8 channels, 64x64"].spans) == layers * 3 + upsampling


@pytest.mark.parametrize("name", ["wan-tiny", "cogvideox-tiny"])
def test_the_rows_of_the_table_add_up(name):
    seconds, meter = measure(name, (64, 64), 5, torch.device("cpu"))
    rows = [line.split("|") for line in table(seconds, meter).splitlines()[2:]]
    *parts, whole = (float(row[3]) for row in rows)
    assert abs(sum(parts) - whole) < 0.05 * len(parts) + 0.1
