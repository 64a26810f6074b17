"""Encoding: all codecs, early fragments, and errors that name their cause."""

import errno
import gc
import io
import os
import sys
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from filmgate.errors import EncodeError, UsageError, WriteError
from filmgate.pipeline.encode import clip_file
from filmgate.pipeline.encode import encoder as encode
from filmgate.pipeline.encode.encoder import (
    SOFTWARE,
    SVT_PRESETS,
    ClipEncoder,
    EncodeOptions,
    configure,
    probe_encoder,
    threads_up_to,
)
from tests.moving_bar import HEIGHT, WIDTH, moving, shown
from tests.spools import spooled_clip

CODECS = ["h264", "hevc", "av1"]


def opened(sink, count, size=(WIDTH, HEIGHT), **options):
    clip = spooled_clip(count, on_fragment=sink.write)
    return ClipEncoder(clip, size, count, EncodeOptions(encoder="software", **options))


def encoded(frames, sink, **options):
    count, lines, width = frames.shape
    encoder = opened(sink, count, (width, lines * 2 // 3), **options)
    for frame in frames:
        encoder.write(frame[None])
    encoder.finish()
    return encoder


class WriteOnly:
    """A sink that has only `write`, like a socket."""

    def __init__(self, room: int | None = None) -> None:
        self.data = b""
        self._room = room

    def write(self, data: bytes) -> int:
        if self._room is not None and len(self.data) + len(data) > self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data += data
        return len(data)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_keeps_every_frame(codec):
    frames, sink = moving(20), WriteOnly()
    encoded(frames, sink, codec=codec)
    pictures = shown(sink.data)
    assert len(pictures) == 20
    bars = [int(picture[:HEIGHT].mean(0).argmax()) for picture in pictures]
    assert all(n <= bar < n + 6 for n, bar in enumerate(bars))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_short_clips_are_complete(codec, count):
    sink = WriteOnly()
    encoded(moving(count), sink, codec=codec)
    assert len(shown(sink.data)) == count


@pytest.mark.parametrize("size", [(16, 16), (40, 34), (48, 32), (66, 50)])
def test_hevc_encodes_sizes_that_corrupted_memory_in_x265(size):
    width, height = size
    sink = WriteOnly()
    encoded(np.full((6, height * 3 // 2, width), 90, np.uint8), sink, codec="hevc")
    assert len(shown(sink.data)) == 6


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's scheduling policies")
@pytest.mark.parametrize("codec", CODECS)
def test_no_thread_gets_another_priority(codec):
    """SVT-AV1 makes threads of root real-time threads: servers and browsers beside a test stood still."""
    before = os.sched_getscheduler(0)
    encoder = opened(WriteOnly(), 2, codec=codec)
    encoder.write(moving(2))
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread of another test has just ended
            found.add(os.sched_getscheduler(int(task.name)))
    assert found == {before}
    encoder.finish()
    assert probe_encoder(codec, SOFTWARE[codec]) is None
    assert os.sched_getscheduler(0) == before


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_the_setting_limits_the_threads_of_av1_and_does_not_change_its_bytes():
    """FFmpeg does not pass a number of threads to SVT-AV1, which took all cores."""
    counts, written = [], set()
    for threads in (1, 2, 8):
        before = len(list(Path("/proc/self/task").iterdir()))
        sink = WriteOnly()
        encoder = opened(sink, 12, codec="av1", threads=threads)
        encoder.write(moving(12))
        counts.append(len(list(Path("/proc/self/task").iterdir())) - before)
        encoder.finish()
        encoder.abandon()
        del encoder
        written.add(sink.data)
    assert counts == sorted(set(counts))
    assert len(written) == 1


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("size", [(128, 16), (16, 256), (24, 16)])
def test_av1_encodes_narrow_clips_on_which_svt_av1_hung(size):
    width, height = size
    sink = WriteOnly()
    noise = np.random.default_rng(0).integers(16, 235, (9, height * 3 // 2, width), np.uint8)
    encoded(noise, sink, codec="av1")
    assert len(shown(sink.data)) == 9


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_the_first_fragment_needs_at_most_five_frames(threads):
    sink = WriteOnly()
    encoder = opened(sink, 5, threads=threads)
    encoder.write(moving(5))
    assert sink.data.count(b"moof") >= 1
    assert encoder.first_fragment_at is not None
    encoder.finish()


@pytest.mark.parametrize(("threads", "slices"), [(1, 1), (2, 2), (8, 2)])
def test_a_frame_has_one_slice_per_thread_and_64_lines(threads, slices):
    sink = WriteOnly()
    options = EncodeOptions(encoder="software", threads=threads)
    encoder = ClipEncoder(spooled_clip(3, on_fragment=sink.write), (64, 128), 3, options)
    encoder.write(np.full((3, 192, 64), 90, np.uint8))
    encoder.finish()
    with av.open(io.BytesIO(sink.data)) as clip:
        second = [bytes(packet) for packet in clip.demux(video=0)][1]
    units, at = 0, 0
    while at < len(second):
        at += 4 + int.from_bytes(second[at : at + 4], "big")
        units += 1
    assert units == slices


def test_there_are_at_most_as_many_threads_as_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert (threads_up_to(4), threads_up_to(8), EncodeOptions().threads) == (4, 6, 6)


def test_the_first_fragment_is_reported_when_it_is_written():
    sink = WriteOnly()
    encoder = opened(sink, 8)
    for frame in moving(8):
        encoder.write(frame[None])
        assert (encoder.first_fragment_at is not None) == (b"moof" in sink.data)
    encoder.finish()


def test_an_unfinished_clip_can_be_played():
    sink, seen = WriteOnly(), []
    encoder = opened(sink, 30)
    for n, frame in enumerate(moving(30), start=1):
        encoder.write(frame[None])
        if n in (5, 10, 20, 30):
            seen.append(len(shown(sink.data)))
    encoder.finish()
    assert seen[0] >= 1
    assert all(count >= n - 5 for count, n in zip(seen, (5, 10, 20, 30), strict=True))
    assert len(shown(sink.data)) == 30


@pytest.mark.parametrize("codec", CODECS)
def test_the_same_frames_give_the_same_bytes(codec):
    one, other = WriteOnly(), WriteOnly()
    encoded(moving(12), one, codec=codec)
    encoded(moving(12), other, codec=codec)
    assert one.data == other.data


def scrolling(count, size=(WIDTH, HEIGHT), seed=0):
    """Moving blocks with some noise, which the encoder predicts from the previous frame."""
    width, height = size
    random = np.random.default_rng(seed)
    blocks = np.kron(random.integers(16, 235, (height * 3 // 16, width // 8)), np.ones((8, 8), int))
    frames = [np.roll(blocks, 8 * n, 1) + random.integers(-6, 6, blocks.shape) for n in range(count)]
    return np.clip(frames, 16, 235).astype(np.uint8)


def test_earlier_clips_do_not_change_the_bytes():
    """The AVX-512 code of x264 reads uninitialised memory, which changed the bytes of small clips."""
    clip, seen = scrolling(9), set()
    for n in range(150):
        encoded(scrolling(n % 11 + 1, [(48, 32), (80, 64), (128, 96)][n % 3], n), WriteOnly())
        sink = WriteOnly()
        encoded(clip, sink)
        seen.add(sink.data)
    assert len(seen) == 1


def test_a_cpu_without_avx_writes_the_same_bytes(monkeypatch):
    def older(context, size, options):
        configure(context, size, options)
        context.options = context.options | {"x264-params": f"{context.options['x264-params']}:asm=SSE2"}

    ours, theirs = WriteOnly(), WriteOnly()
    encoded(scrolling(12), ours)
    monkeypatch.setattr(encode, "configure", older)
    encoded(scrolling(12), theirs)
    assert ours.data == theirs.data


@pytest.mark.parametrize("fps", [8, 16, 23.976, 24000 / 1001, 25, 30])
def test_the_clip_has_the_requested_frame_rate(fps):
    sink = WriteOnly()
    encoded(moving(12), sink, fps=fps)
    with av.open(io.BytesIO(sink.data)) as clip:
        times = [frame.time for frame in clip.decode(video=0)]
    assert np.diff(times) == pytest.approx([1 / fps] * 11, rel=0.01)
    assert EncodeOptions(fps=24000 / 1001).rate == Fraction(24000, 1001)


@pytest.mark.parametrize("room", [0, 600, 4000])
def test_a_full_sink_is_a_write_error_with_its_cause(room):
    with pytest.raises(WriteError, match="No space left on device") as caught:
        encoded(moving(60), WriteOnly(room))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC


def test_a_missing_temporary_folder_is_a_write_error_that_names_it(monkeypatch):
    monkeypatch.setattr(clip_file, "MEMORY_BYTES", 1000)
    monkeypatch.setattr("tempfile.tempdir", "/does/not/exist")
    with pytest.raises(WriteError, match="/does/not/exist"):
        encoded(scrolling(60), WriteOnly())


def test_collecting_an_abandoned_encoder_does_not_raise(monkeypatch):
    said = []
    monkeypatch.setattr("sys.unraisablehook", said.append)
    sink = WriteOnly()
    encoder = opened(sink, 8)
    encoder.write(moving(8))
    del encoder
    gc.collect()
    assert said == []


@pytest.mark.parametrize("preset", SVT_PRESETS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_encoder_has_every_preset(codec, preset):
    sink = io.BytesIO()
    encoded(moving(2), sink, codec=codec, preset=preset)
    assert len(shown(sink.getvalue())) == 2


def test_an_unknown_preset_is_refused_before_a_clip_is_rendered():
    with pytest.raises(UsageError, match=r"no preset 'warp'; use one of ultrafast, .*placebo"):
        EncodeOptions(preset="warp")


def test_an_option_that_ffmpeg_refuses_is_an_encode_error(monkeypatch):
    monkeypatch.setitem(SVT_PRESETS, "warp", "1")
    with pytest.raises(EncodeError):
        encoded(moving(8), WriteOnly(), preset="warp")


def test_frames_of_another_size_are_scaled():
    sink = io.BytesIO()
    encoder = opened(sink, 6, (WIDTH * 2, HEIGHT * 2))
    encoder.write(moving(6))
    encoder.finish()
    frames = shown(sink.getvalue())
    assert len(frames) == 6
    assert frames[0].shape == (HEIGHT * 3, WIDTH * 2)  # YUV planes of the doubled size
    assert frames[3][:, 10].mean() > frames[3][: HEIGHT * 2, 40].mean()  # the bar is where it was
