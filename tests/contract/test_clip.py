"""The finished file: complete or absent, index first, with stills and metadata."""

import errno
import gc
import os
from contextlib import closing
from dataclasses import astuple
from io import BytesIO
from pathlib import Path
from threading import Event

import av
import numpy as np
import pytest
import torch
from av.container import OutputContainer
from av.video.codeccontext import VideoCodecContext
from PIL import Image

from filmgate.errors import Cancelled, DecodeError, UsageError, WriteError
from filmgate.jobs import Stage, StillKind
from filmgate.pipeline.clip_writer import ClipOutputs, ClipWriter
from filmgate.pipeline.control import Control
from filmgate.pipeline.encode.clip_file import SYNC_EVERY_BYTES, ClipFile
from filmgate.pipeline.encode.encoder import EncodeOptions
from filmgate.pipeline.encode.stills import StillPaths, Stills
from filmgate.pipeline.transfer.loops import transfer_overlapped, transfer_plain
from tests.full_disk import full_disk

pytestmark = pytest.mark.usefixtures("no_thread_left")
LOOPS = [transfer_plain, transfer_overlapped]
SOFTWARE = EncodeOptions(encoder="software")


def draw_latents(frames=5, seed=0):
    return torch.randn(1, 4, frames, 6, 8, generator=torch.Generator().manual_seed(seed))


def boxes(path: Path) -> list[str]:
    """Return the names of the top-level boxes of an MP4, in order."""
    data, names, at = path.read_bytes(), [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        names.append(data[at + 4 : at + 8].decode())
        at += size
    return names


@pytest.fixture(scope="module")
def clip(vae, tmp_path_factory):
    """The report, fragments and progress of one clip with all outputs."""
    folder = tmp_path_factory.mktemp("clip")
    fragments, progress = [], []
    outputs = ClipOutputs(
        {"model": "wan2.1", "seed": "7"},
        StillPaths(folder / "thumb.png", folder / "sheet.png"),
        fragments.append,
    )
    control = Control(progress.append)
    report = ClipWriter(vae("wan2.1"), SOFTWARE).write(draw_latents(), folder / "clip.mp4", outputs, control)
    return report, fragments, progress


def test_the_report_describes_the_file(clip):
    report, _, _ = clip
    assert report.size_bytes == report.path.stat().st_size
    assert (report.shape.frames, report.shape.height, report.shape.width) == (17, 48, 64)
    assert 0 < report.first_fragment_seconds < report.seconds
    assert report.rung == "whole frame"


def test_the_file_contains_every_frame_at_its_time(clip):
    with av.open(str(clip[0].path)) as video:
        times = [frame.time for frame in video.decode(video=0)]
    assert times == pytest.approx([n / 16 for n in range(17)], abs=1e-3)


def test_the_index_precedes_the_frames(clip):
    names = boxes(clip[0].path)
    assert names.index("moov") < names.index("mdat")
    assert "moof" not in names


def test_model_seed_and_version_can_be_read_from_the_file(clip):
    from filmgate import __version__

    with av.open(str(clip[0].path)) as video:
        tags = {key: value for key, value in video.metadata.items() if key.startswith("filmgate_")}
    assert tags == {"filmgate_model": "wan2.1", "filmgate_seed": "7", "filmgate_version": __version__}


def test_the_fragments_are_a_playable_stream(clip, tmp_path):
    report, fragments, _ = clip
    (tmp_path / "live.mp4").write_bytes(b"".join(fragments))
    with av.open(str(tmp_path / "live.mp4")) as live, av.open(str(report.path)) as finished:
        pairs = zip(live.decode(video=0), finished.decode(video=0), strict=True)
        assert all(np.array_equal(a.to_ndarray(), b.to_ndarray()) for a, b in pairs)


def test_progress_counts_encoded_frames(clip):
    decode = [(p.done, p.total) for p in clip[2] if p.stage is Stage.DECODE]
    assert decode == [(1, 17), (5, 17), (9, 17), (13, 17), (17, 17)]


def test_only_the_clip_and_its_stills_are_written(clip):
    names = sorted(path.name for path in clip[0].path.parent.iterdir())
    assert names == ["clip.mp4", "sheet.png", "thumb.png"]


def test_the_stills_show_the_right_frames(clip):
    folder = clip[0].path.parent
    with av.open(str(clip[0].path)) as video:
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    thumbnail, sheet = (pixels(folder / name) for name in ("thumb.png", "sheet.png"))
    assert thumbnail.shape == (48, 64, 3)
    assert sheet.shape == (4 * 48, 4 * 64, 3)
    assert nearest(frames, thumbnail) == 8
    tiles = [sheet[y : y + 48, x : x + 64] for y in range(0, 192, 48) for x in range(0, 256, 64)]
    assert [nearest(frames, tile) for tile in tiles] == [n * 17 // 16 for n in range(16)]


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture)


def nearest(frames, picture):
    return int(np.argmin([np.abs(frame.astype(int) - picture).mean() for frame in frames]))


@pytest.mark.parametrize(("total", "size"), [(1, (48, 64)), (3, (48, 192)), (5, (96, 256)), (40, (192, 256))])
def test_a_short_clip_has_a_small_sheet(total, size, tmp_path):
    stills = Stills(StillPaths(None, tmp_path / "sheet.png"), total)
    stills.add(np.full((total, 72, 64), 128, np.uint8))
    stills.save()
    assert pixels(tmp_path / "sheet.png").shape == (*size, 3)


def test_a_wide_clip_is_scaled_down_on_the_sheet(tmp_path):
    stills = Stills(StillPaths(tmp_path / "thumb.jpg", tmp_path / "sheet.webp"), 1)
    stills.add(np.full((1, 270, 480), 128, np.uint8))
    stills.save()
    assert pixels(tmp_path / "thumb.jpg").shape == (180, 480, 3)
    assert pixels(tmp_path / "sheet.webp").shape == (90, 240, 3)


def test_the_stills_of_a_scaled_clip_have_its_size(vae, tmp_path):
    stills = {}
    outputs = ClipOutputs(
        on_still=lambda kind, data: stills.update({kind: data}), scaled_to=(32, 40)
    )  # 64x48 frames: also another shape
    report = ClipWriter(vae("wan2.1"), SOFTWARE).write(draw_latents(1), tmp_path / "clip.mp4", outputs)
    with av.open(str(report.path)) as video:
        assert (video.streams.video[0].width, video.streams.video[0].height) == (32, 40)
    assert (report.shape.width, report.shape.height) == (32, 40)
    sizes = {kind: Image.open(BytesIO(data)).size for kind, data in stills.items()}
    assert sizes == dict.fromkeys(StillKind, (32, 40))


@pytest.mark.parametrize(("codec", "tag"), [("h264", "avc1"), ("hevc", "hvc1"), ("av1", "av01")])
def test_the_file_of_every_codec_has_standard_tags(vae, codec, tag, tmp_path):
    """hvc1 instead of hev1, because players from Apple do not show hev1."""
    options = EncodeOptions(encoder="software", codec=codec)
    path = ClipWriter(vae("wan2.1"), options).write(draw_latents(3), tmp_path / "clip.mp4").path
    with av.open(str(path)) as video:
        context = video.streams.video[0].codec_context
        colours = (context.color_primaries, context.color_trc, context.colorspace, context.color_range)
        assert len(list(video.decode(video=0))) == 9
        assert video.duration == 9 / 16 * av.time_base
        assert (video.streams.video[0].frames, video.streams.video[0].average_rate) == (9, 16)
    assert colours == (1, 1, 1, 1)
    assert boxes(path) == ["ftyp", "moov", "free", "free", "mdat"]


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_both_loops_write_the_same_file(vae, codec, tmp_path):
    paths = [tmp_path / f"{loop.__name__}.mp4" for loop in LOOPS]
    for loop, path in zip(LOOPS, paths, strict=True):
        options = EncodeOptions(encoder="software", codec=codec)
        ClipWriter(vae("wan2.1"), options, loop=loop).write(draw_latents(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_one_writer_writes_clips_of_several_shapes(vae, tmp_path):
    writer = ClipWriter(vae("wan2.1"), SOFTWARE)
    first = writer.write(draw_latents(3), tmp_path / "a.mp4").path.read_bytes()
    writer.write(draw_latents(1), tmp_path / "b.mp4")
    assert writer.write(draw_latents(3), tmp_path / "c.mp4").path.read_bytes() == first


class Failing:
    """A receiver of fragments that fails after some of them."""

    def __init__(self, after: int, error: BaseException) -> None:
        self._left, self._error = after, error

    def __call__(self, data: bytes) -> None:
        self._left -= 1
        if self._left < 0:
            raise self._error


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_full_disk_is_named_in_the_error_and_leaves_no_file(vae, loop, after, tmp_path):
    outputs = ClipOutputs(on_fragment=Failing(after, OSError(28, "No space left on device")))
    writer = ClipWriter(vae("wan2.1"), SOFTWARE, loop=loop)
    with pytest.raises(WriteError, match="No space left on device") as caught:
        writer.write(draw_latents(), tmp_path / "clip.mp4", outputs)
    assert isinstance(caught.value.__cause__, OSError)
    assert list(tmp_path.iterdir()) == []
    del caught
    gc.collect()  # collecting an abandoned encoder must not raise
    assert writer.write(draw_latents(), tmp_path / "clip.mp4").path.exists()


@pytest.mark.parametrize(
    "find_room", [lambda _: 10, lambda _: 2000, lambda size: size // 2, lambda size: size - 1]
)
def test_a_write_that_fails_anywhere_in_the_file_is_a_write_error(vae, find_room, tmp_path):
    writer = ClipWriter(vae("wan2.1"))
    size = writer.write(draw_latents(), tmp_path / "clip.mp4").size_bytes
    (tmp_path / "clip.mp4").unlink()
    with full_disk(find_room(size)), pytest.raises(WriteError) as caught:
        writer.write(draw_latents(), tmp_path / "clip.mp4")
    assert str(caught.value) == "cannot write the clip: File too large"
    assert list(tmp_path.iterdir()) == []


def broken_disk(_):
    raise OSError(errno.EIO, "Input/output error")


def test_a_clip_is_not_published_before_it_is_flushed(vae, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", broken_disk)
    with pytest.raises(WriteError, match=r"cannot write .*clip.mp4: Input/output error"):
        ClipWriter(vae("wan2.1"), SOFTWARE).write(draw_latents(1), tmp_path / "clip.mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_long_clip_is_flushed_while_it_is_written(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_size))
    with closing(ClipFile(tmp_path / "clip.mp4", {})) as clip:
        for _ in range(5):
            assert clip.file.write(bytes(SYNC_EVERY_BYTES // 2)) == SYNC_EVERY_BYTES // 2
    assert synced == [SYNC_EVERY_BYTES, 2 * SYNC_EVERY_BYTES]


def test_a_long_clip_is_flushed_on_a_system_without_fdatasync(tmp_path, monkeypatch):
    """As macOS."""
    synced = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", synced.append)
    with closing(ClipFile(tmp_path / "clip.mp4", {})) as clip:
        clip.file.write(bytes(SYNC_EVERY_BYTES))
    assert len(synced) == 1


def test_a_failed_flush_is_a_write_error(vae, tmp_path, monkeypatch):
    monkeypatch.setattr("filmgate.pipeline.encode.clip_file.SYNC_EVERY_BYTES", 1)
    monkeypatch.setattr(os, "fdatasync", broken_disk)
    with pytest.raises(WriteError, match="cannot write the clip: Input/output error"):
        ClipWriter(vae("wan2.1"), SOFTWARE).write(draw_latents(1), tmp_path / "clip.mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_or_device_is_not_replaced_by_a_clip(vae, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe exists and is not a regular file"):
        ClipWriter(vae("wan2.1"), SOFTWARE).write(draw_latents(1), tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
@pytest.mark.parametrize("on_fragment", [None, lambda _: None])
def test_a_spooled_clip_has_the_bytes_of_the_file(vae, codec, on_fragment, tmp_path):
    writer = ClipWriter(vae("wan2.1"), EncodeOptions(encoder="software", codec=codec))
    spooled = writer.write(draw_latents(3), None, ClipOutputs(on_fragment=on_fragment))
    on_disk = writer.write(draw_latents(3), tmp_path / "clip.mp4")
    assert b"".join(spooled.spool.chunks()) == on_disk.path.read_bytes()
    assert spooled.size_bytes == on_disk.size_bytes


def test_the_phases_add_up_to_the_total_time(clip):
    report, _, _ = clip
    phases = astuple(report.phases)
    assert min(phases) > 0
    assert sum(phases) == pytest.approx(report.seconds)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_cancelled_clip_leaves_no_file(vae, loop, tmp_path):
    reported = []

    def cancel_early(progress):
        reported.append(progress.done)
        control.cancel()

    control = Control(cancel_early)
    with pytest.raises(Cancelled):
        ClipWriter(vae("wan2.1"), SOFTWARE, loop=loop).write(
            draw_latents(12), tmp_path / "clip.mp4", control=control
        )
    assert list(tmp_path.iterdir()) == []
    assert max(reported) < 45


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_the_encoder_of_a_cancelled_clip_is_freed_at_once(vae, codec):
    """x265 and SVT-AV1 have dozens of threads, which lived until a garbage collection."""
    stop = Event()
    writer = ClipWriter(vae("wan2.1"), EncodeOptions(encoder="software", codec=codec))
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(Cancelled):
            writer.write(draw_latents(), None, control=Control(lambda _: stop.set(), stop))
        assert [each for each in gc.get_objects() if type(each) in {OutputContainer, VideoCodecContext}] == []
    finally:
        gc.enable()


def test_nan_in_the_decoder_leaves_no_file(vae, tmp_path):
    def spoil(_module, _inputs, output):
        return output * float("nan")

    hook = vae("wan2.1").decoder.register_forward_hook(spoil)
    try:
        with pytest.raises(DecodeError):
            ClipWriter(vae("wan2.1"), SOFTWARE).write(draw_latents(), tmp_path / "clip.mp4")
    finally:
        hook.remove()
    assert list(tmp_path.iterdir()) == []


def test_an_older_clip_stays_until_the_new_one_is_complete(vae, tmp_path):
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"older")
    outputs = ClipOutputs(on_fragment=Failing(2, OSError(28, "No space left on device")))
    with pytest.raises(WriteError):
        ClipWriter(vae("wan2.1"), SOFTWARE).write(draw_latents(), path, outputs)
    assert path.read_bytes() == b"older"


def test_missing_folders_are_created(vae, tmp_path):
    path = tmp_path / "a" / "b" / "clip.mp4"
    assert ClipWriter(vae("wan2.1"), SOFTWARE).write(draw_latents(1), path).path.exists()


@pytest.mark.parametrize("name", ["a folder", "/proc/clip.mp4", "file/clip.mp4"])
def test_a_path_that_cannot_be_written_is_a_usage_error(name, tmp_path):
    (tmp_path / "a folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught, closing(ClipFile(tmp_path / name, {})):
        pass
    assert caught.value.option == "--output"


def test_a_still_that_cannot_be_written_fails_the_clip(vae, tmp_path):
    (tmp_path / "file").touch()
    stills = StillPaths(tmp_path / "thumb.png", tmp_path / "file" / "sheet.png")
    with pytest.raises(WriteError, match="sheet.png"):
        ClipWriter(vae("wan2.1"), SOFTWARE).write(
            draw_latents(1), tmp_path / "clip.mp4", ClipOutputs(stills=stills)
        )
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("option", ["thumbnail", "spritesheet"])
def test_an_unknown_still_format_is_rejected_at_once(option):
    with pytest.raises(UsageError, match="end it in .jpg, .jpeg, .png, .webp") as caught:
        StillPaths(**{option: Path("still.mp5")})
    assert caught.value.option == f"--{option}"
