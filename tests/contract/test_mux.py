"""The file and the fragments of one encoder: the index fits, and both contain the same clip."""

import io
from contextlib import closing
from types import SimpleNamespace

import av
import numpy as np
import pytest

from filmgate.errors import EncodeError
from filmgate.pipeline.encode import mux
from filmgate.pipeline.encode.encoder import ClipEncoder, EncodeOptions
from filmgate.pipeline.encode.mux import index_bytes
from tests.spools import spooled_clip

WIDTH, HEIGHT = 64, 48


def noise(count, width=WIDTH, height=HEIGHT):
    return np.random.default_rng(0).integers(16, 236, (count, height * 3 // 2, width), dtype=np.uint8)


def written(frames, metadata=None, announced=None, **options):
    """Return a clip and its fragments."""
    fragments = []
    clip = spooled_clip(announced or len(frames), metadata, fragments.append)
    size = (frames.shape[2], frames.shape[1] * 2 // 3)
    settings = EncodeOptions(encoder="software", **options)
    encoder = ClipEncoder(clip, size, announced or len(frames), settings)
    encoder.write(frames)
    encoder.finish()
    clip.publish()
    return read(clip), b"".join(fragments)


def read(clip):
    with closing(clip):
        return b"".join(clip.chunks())


def sizes(data):
    """Return the top-level boxes as (name, size), in order."""
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append((data[at + 4 : at + 8].decode(), size))
        at += size
    return found


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
@pytest.mark.parametrize("count", [1, 2, 33])
def test_fragments_and_file_have_the_same_frames_and_times(codec, count):
    seen = []
    for data in written(noise(count), codec=codec):
        with av.open(io.BytesIO(data)) as clip:
            tag = clip.streams.video[0].codec_context.codec_tag
            assert clip.duration == count * av.time_base // 16
            seen.append((tag, [(frame.time, frame.to_ndarray()) for frame in clip.decode(video=0)]))
    (tag, finished), (live_tag, live) = seen
    assert tag == live_tag
    assert [time for time, _ in finished] == [time for time, _ in live] == [n / 16 for n in range(count)]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(finished, live, strict=True))


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
@pytest.mark.parametrize("count", [1, 5, 400])
def test_the_index_takes_less_than_half_of_its_space(codec, count):
    """The space is an upper bound for the largest tables of the format; ordinary clips need much less."""
    data, _ = written(noise(count), codec=codec, fps=1 if count == 400 else 16, preset="ultrafast")
    index = dict(sizes(data))["moov"]
    assert [name for name, _ in sizes(data)] == ["ftyp", "moov", "free", "free", "mdat"]
    assert index < index_bytes(count, {}) / 2


def test_the_index_of_large_frames_fits():
    """Each frame is one chunk of the MP4, which gives the largest tables."""
    data, _ = written(noise(6, 1280, 720), crf=1, preset="ultrafast")
    assert len(data) > 6 << 20
    assert dict(sizes(data))["moov"] < index_bytes(6, {}) / 2


def test_long_metadata_fits():
    metadata = {f"filmgate_{n}": "Grüße aus dem Off " * 400 for n in range(20)}
    data, _ = written(noise(2), metadata)
    with av.open(io.BytesIO(data)) as clip:
        assert {key: clip.metadata[key] for key in metadata} == metadata


def test_an_index_that_does_not_fit_is_an_error(monkeypatch):
    monkeypatch.setattr(mux, "INDEX_BASE_BYTES", 100)
    with pytest.raises(EncodeError):
        written(noise(2))


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_behind_the_head_every_byte_is_final_as_soon_as_it_is_written(codec, monkeypatch):
    snapshots = []

    class Recorded(io.BytesIO):
        def write(self, data):
            written = super().write(data)
            snapshots.append(self.getvalue())
            return written

    monkeypatch.setattr(mux, "BUFFER_BYTES", 4096)
    clip = SimpleNamespace(file=Recorded(), metadata={"seed": "7"}, on_fragment=None)
    encoder = ClipEncoder(clip, (WIDTH, HEIGHT), 24, EncodeOptions(encoder="software", codec=codec))
    encoder.write(noise(24))
    encoder.finish()
    start = mux.head_bytes(24, clip.metadata)
    body = snapshots[-1][start:]
    assert len({len(snapshot) for snapshot in snapshots if len(snapshot) > start}) > 2
    assert all(body.startswith(snapshot[start:]) for snapshot in snapshots)


def test_the_file_is_the_same_without_fragments():
    frames = noise(9)
    clip = spooled_clip(9)
    encoder = ClipEncoder(clip, (WIDTH, HEIGHT), 9, EncodeOptions(encoder="software"))
    for n, frame in enumerate(frames, start=1):
        encoder.write(frame[None])
        assert (encoder.first_fragment_at is not None) == (n >= first_fragment_after(frames))
    encoder.finish()
    clip.publish()
    assert read(clip) == written(frames)[0]


def first_fragment_after(frames):
    """Return how many frames the encoder takes before the first fragment."""
    fragments = []
    options = EncodeOptions(encoder="software")
    encoder = ClipEncoder(
        spooled_clip(len(frames), on_fragment=fragments.append), (WIDTH, HEIGHT), len(frames), options
    )
    for n, frame in enumerate(frames, start=1):
        encoder.write(frame[None])
        if b"moof" in b"".join(fragments):
            return n
    raise AssertionError("no fragment was written")
