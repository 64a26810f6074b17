"""Encodes frames with PyAV. The first H.264 fragment is ready after at most five frames."""

import errno
import os
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import av
import numpy as np
from av.codec.codec import Codec, UnknownCodecError
from av.video.codeccontext import VideoCodecContext
from av.video.reformatter import Interpolation, VideoReformatter

from filmgate.errors import EncodeError, UsageError, WriteError
from filmgate.pipeline.encode.clip_file import ClipTarget
from filmgate.pipeline.encode.mux import ClipMuxer, Packets
from filmgate.pipeline.transfer.colour import YuvLayout, yuv_layout
from filmgate.pipeline.transfer.streams import AnyTimeline, NoTimeline
from filmgate.telemetry.logs import Log

log = Log("encode")

os.environ.setdefault("SVT_LOG", "1")  # the only way to turn off the banner of SVT-AV1

BT709, LIMITED_RANGE = 1, 1
SOFTWARE = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
HARDWARE = {"h264": "h264_nvenc", "hevc": "hevc_nvenc", "av1": "av1_nvenc"}
TEST_SIZE = (256, 256)
"""The test frame that shows whether an encoder works at all. NVENC is reported to need up to 145x145."""
INTERLEAVED = {"yuv420p10le": "p010le", "yuv422p": "nv16", "yuv422p10le": "p210le"}
SVT_PRESETS = {
    "ultrafast": "12",
    "superfast": "11",
    "veryfast": "10",
    "faster": "9",
    "fast": "8",
    "medium": "6",
    "slow": "4",
    "slower": "3",
    "veryslow": "2",
    "placebo": "1",
}
SVT_CORES = (1, 2, 5, 11, 23)
"""The most cores of each level of parallelism but the last. SVT-AV1 takes no number of threads."""


def threads_up_to(maximum: int) -> int:
    """Return one thread per core, at most `maximum`."""
    return min(os.cpu_count() or 1, maximum)


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How a clip is encoded."""

    fps: float = 16
    codec: str = "h264"
    encoder: str = "auto"
    preset: str = "veryfast"
    crf: int = 18
    threads: int = field(default_factory=lambda: threads_up_to(8))
    pixel_format: str = "yuv420p"

    def __post_init__(self) -> None:
        if not 0.1 <= self.fps <= 1000:
            raise UsageError(f"{self.fps:g} is not between 0.1 and 1000 frames per second", option="fps")
        if self.preset not in SVT_PRESETS:
            raise UsageError(
                f"there is no preset {self.preset!r}; use one of {', '.join(SVT_PRESETS)}",
                option="pipeline.preset",
            )

    @property
    def layout(self) -> YuvLayout:
        """The layout of the frames that the encoder reads."""
        return yuv_layout(self.pixel_format)

    @property
    def rate(self) -> Fraction:
        return Fraction(self.fps).limit_denominator(1001)


class ClipEncoder:
    """Encodes YUV frames into a clip. After `finish` the clip is complete but not published.

    Frames of another size than `size` are scaled.
    `first_fragment_at` is the time of the first fragment. A fragment is complete when the next packet
    arrives, so this is the time of the second packet, with or without a receiver of fragments.
    """

    def __init__(
        self,
        clip: ClipTarget,
        size: tuple[int, int],
        frames: int,
        options: EncodeOptions,
        timeline: AnyTimeline | None = None,
    ) -> None:
        self._timeline = timeline or NoTimeline()
        self._clip = clip
        self._size = size
        self._layout = options.layout
        self._scaler = VideoReformatter()
        self._count = 0
        self._muxed = 0
        self.first_fragment_at: float | None = None
        with _translated():
            self._muxer = ClipMuxer(clip, frames, pick_encoder(options, size), options.rate)
        self._stream = self._muxer.stream
        configure(self._stream.codec_context, size, options)

    def write(self, frames: np.ndarray) -> None:
        """Encode frames [n, *frame_shape] of the layout. Raises EncodeError or WriteError."""
        with _translated():
            if self._count == 0:
                open_encoder(self._stream.codec_context)
            for planes in frames:
                frame = to_video_frame(planes, self._layout)
                if (frame.width, frame.height) != self._size:
                    frame = self._scale(frame)
                frame.time_base = self._stream.codec_context.time_base
                frame.pts, frame.duration = self._count, 1
                with self._timeline.on_host("encode"):
                    packets = self._stream.encode(frame)
                self._mux(packets)
                self._count += 1

    def _scale(self, frame: av.VideoFrame) -> av.VideoFrame:
        width, height = self._size
        with self._timeline.on_host("encode"):
            scaled = self._scaler.reformat(frame, width, height, interpolation=Interpolation.LANCZOS)
        assert scaled is not None
        return scaled

    def finish(self) -> None:
        """Flush the encoder and complete the file."""
        with _translated():
            with self._timeline.on_host("encode"):
                packets = self._stream.encode(None)
            self._mux(packets)
            with self._timeline.on_host("write"):
                self._muxer.close()
        self.first_fragment_at = self.first_fragment_at or time.perf_counter()

    def abandon(self) -> None:
        """Close the clip as it is, and free the encoder with its threads."""
        self._clip.close()
        self._muxer.close()

    def _mux(self, packets: Packets) -> None:
        if not packets:
            return
        with self._timeline.on_host("write"):
            self._muxer.mux(packets)
        self._muxed += len(packets)
        if self._muxed > 1 and self.first_fragment_at is None:
            self.first_fragment_at = time.perf_counter()


def configure(context: VideoCodecContext, size: tuple[int, int], options: EncodeOptions) -> None:
    """Set size, colour tags and rate control. H.264 buffers a few frames instead of forty."""
    context.width, context.height = size
    context.pix_fmt = encoder_format(context.codec, options)
    context.time_base = 1 / options.rate
    context.color_primaries = context.color_trc = context.colorspace = BT709
    context.color_range = LIMITED_RANGE
    context.thread_count = options.threads
    context.gop_size = max(round(options.fps * 2), 1)
    context.max_b_frames = 0
    if options.codec == "hevc":
        context.codec_tag = "hvc1"  # players from Apple do not show hev1, FFmpeg's default
    if context.codec.name in HARDWARE.values():
        context.options = nvenc_options(options)
    elif options.codec == "h264":
        # Slices instead of frame threads and a look-ahead of two: the first fragment needs five frames,
        # which are the first two chunks of a causal VAE. cpu-independent gives the same bytes on every CPU:
        # the AVX-512 code of x264 reads uninitialised memory. Measured in docs/adr/0003.
        params = "sliced-threads=1:sync-lookahead=0:rc-lookahead=2:cpu-independent=1:chromaloc=1"
        context.options = {"preset": options.preset, "crf": str(options.crf), "x264-params": params}
    elif options.codec == "hevc":
        params = f"log-level=error:pools={options.threads}:chromaloc=1"
        if size[0] < 64:
            params += ":cutree=0"  # x265 4.1 overflows a buffer in clips 34 to 48 pixels wide
        context.options = {"preset": options.preset, "crf": str(options.crf), "x265-params": params}
    else:
        # SVT-AV1 4.1 with more threads hangs on clips of 128x16 pixels.
        level = 1 if min(size) < 32 else 1 + bisect_left(SVT_CORES, options.threads)
        params = f"lookahead=0:tune=0:lp={level}"
        context.options = {
            "preset": SVT_PRESETS[options.preset],
            "crf": str(options.crf),
            "svtav1-params": params,
        }


def encoder_format(codec: Codec, options: EncodeOptions) -> str:
    """FFmpeg's pixel format for this encoder. NVENC takes the same values with interleaved chroma."""
    wanted = options.layout.ffmpeg_name
    known = {each.name for each in codec.video_formats or ()}
    if wanted not in known:
        wanted = INTERLEAVED.get(wanted, wanted)
    if wanted not in known:
        raise UsageError(
            f"{codec.name} does not encode {options.pixel_format}; use another codec or yuv420p",
            option="pipeline.pixel_format",
        )
    return wanted


def check_encoder(codec: str, encoder: str, pixel_format: str) -> None:
    """Raise UsageError or EncodeError if these settings cannot encode a clip. Call before denoising."""
    options = EncodeOptions(codec=codec, encoder=encoder, pixel_format=pixel_format)
    encoder_format(Codec(SOFTWARE[codec], "w"), options)
    if encoder == "nvenc" and pick_encoder(options) != HARDWARE[codec]:
        raise EncodeError(
            f"pipeline.encoder is nvenc, but {HARDWARE[codec]} does not encode {pixel_format} here; "
            "set it to auto, or choose another pipeline.pixel_format"
        )


def nvenc_options(options: EncodeOptions) -> dict[str, str]:
    """Constant quality without a look-ahead: each frame leaves the encoder before the next one enters."""
    quality = max(options.crf, 1)  # 0 means automatic: FFmpeg's default of 2 Mbit/s for any size
    return {"preset": "p4", "tune": "hq", "rc": "vbr", "cq": str(quality), "delay": "0"}


def pick_encoder(options: EncodeOptions, size: tuple[int, int] = TEST_SIZE) -> str:
    """Return FFmpeg's name of the encoder. NVENC is used only if it has encoded a test frame like the clip's.

    Raises EncodeError if the setting is nvenc and NVENC does not work at all. Its limits depend on the codec
    and the GPU; a clip of a size or format outside them is encoded in software, whatever the setting.
    """
    hardware, software = HARDWARE[options.codec], SOFTWARE[options.codec]
    if options.encoder == "software":
        return software
    problem = _known_problem(options.codec, hardware, "yuv420p", TEST_SIZE)
    if options.encoder == "nvenc" and problem:
        raise EncodeError(
            f"pipeline.encoder is nvenc, but {hardware} does not work here ({problem}); set it to auto"
        )
    if problem:
        return software
    if _known_problem(options.codec, hardware, options.pixel_format, size):
        message = (
            f"{hardware} does not encode {options.pixel_format} at {size[0]}x{size[1]}; using {software}"
        )
        log.info(message)
        return software
    return hardware


def probe_encoder(
    codec: str, name: str, pixel_format: str = "yuv420p", size: tuple[int, int] = TEST_SIZE
) -> str | None:
    """Encode one frame. Returns None on success, else the problem: opening an encoder proves nothing."""
    try:
        context = av.CodecContext.create(name, "w")
        assert isinstance(context, VideoCodecContext)
        options = EncodeOptions(codec=codec, pixel_format=pixel_format)
        configure(context, size, options)
        context.framerate = Fraction(16)
        grey = np.full(options.layout.frame_shape(size[1], size[0]), 1, np.uint8)
        frame = to_video_frame(grey, options.layout)
        frame.pts = 0
        open_encoder(context)
        packets = [*context.encode(frame), *context.encode(None)]
    except UsageError:
        return f"it does not encode {pixel_format}"
    except (av.FFmpegError, ValueError, OSError) as exc:
        return getattr(exc, "strerror", None) or type(exc).__name__
    return None if any(packet.size for packet in packets) else "the encoder returned no packet"


def accepts_options(codec: str, name: str) -> bool:
    """Whether FFmpeg has this encoder and takes our options. It checks them before it looks for a device."""
    try:
        context = av.CodecContext.create(name, "w")
        assert isinstance(context, VideoCodecContext)
        configure(context, TEST_SIZE, EncodeOptions(codec=codec))
        open_encoder(context)
    except UnknownCodecError:
        return False
    except (av.FFmpegError, OSError) as exc:
        return exc.errno not in {errno.EINVAL, errno.ERANGE}
    return True


_known_problem = lru_cache(maxsize=1024)(probe_encoder)  # a probe per clip would be slow


@contextmanager
def _translated() -> Iterator[None]:
    """Raise WriteError for OSErrors of our files and EncodeError for errors of FFmpeg."""
    try:
        yield
    except (OSError, av.FFmpegError) as exc:
        if isinstance(exc, OSError) and not isinstance(exc, av.FFmpegError):
            raise WriteError(f"cannot write the clip: {exc.strerror or exc}") from exc
        raise EncodeError(f"the encoder failed: {exc}") from exc


def to_video_frame(planes: np.ndarray, layout: YuvLayout) -> av.VideoFrame:
    """A frame from the bytes that the layout has written: luma rows, then both planes of chroma."""
    if layout.ffmpeg_name == "yuv420p":
        return av.VideoFrame.from_ndarray(planes, format=layout.ffmpeg_name)
    wide = "10" in layout.ffmpeg_name
    rows, row_bytes = planes.shape
    height = rows // 2 if "422" in layout.ffmpeg_name else rows * 2 // 3
    frame = av.VideoFrame(row_bytes // (2 if wide else 1), height, layout.ffmpeg_name)
    values, start = planes.reshape(-1), 0
    for plane in frame.planes:
        used = plane.width * (2 if wide else 1)
        count = plane.height * used
        target = np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)
        target[:, :used] = values[start : start + count].reshape(plane.height, used)
        start += count
    return frame


def open_encoder(context: VideoCodecContext) -> None:
    """Open the encoder, and restore the scheduling policy of this thread, also for the encoder's threads.

    In a process of root, SVT-AV1 makes them real-time threads of the highest priority (SCHED_FIFO, 99), and
    every process started later inherits that. Whatever else runs on the machine then waits for them.
    """
    if sys.platform != "linux":
        context.open(strict=False)
        return
    policy, parameters, before = os.sched_getscheduler(0), os.sched_getparam(0), _thread_ids()
    try:
        context.open(strict=False)
    finally:
        if os.sched_getscheduler(0) != policy:
            for thread_id in {0} | (_thread_ids() - before):
                with suppress(ProcessLookupError):  # a thread that has ended
                    os.sched_setscheduler(thread_id, policy, parameters)


def _thread_ids() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}
