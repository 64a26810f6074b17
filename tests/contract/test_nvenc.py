"""NVENC: its options without a device, its branch with a software encoder, and what the doctor proves."""

import io

import av
import numpy as np
import pytest
import torch

from filmgate.errors import EncodeError
from filmgate.models.pixel_formats import FORMATS
from filmgate.pipeline import canary, doctor
from filmgate.pipeline.encode import encoder as encode
from filmgate.pipeline.encode.encoder import (
    HARDWARE,
    SOFTWARE,
    ClipEncoder,
    EncodeOptions,
    accepts_options,
    check_encoder,
    pick_encoder,
    probe_encoder,
)
from filmgate.pipeline.render import Renderer
from filmgate.settings import PipelineSettings
from tests.moving_bar import HEIGHT, WIDTH, moving, shown
from tests.spools import spooled_clip

CODECS = ["h264", "hevc", "av1"]
nvenc = probe_encoder("h264", "h264_nvenc")


@pytest.mark.skipif(nvenc is None, reason="needs a machine without NVENC")
@pytest.mark.parametrize("codec", CODECS)
def test_without_nvenc_auto_falls_back_to_software(codec):
    assert pick_encoder(EncodeOptions(codec=codec)) == pick_encoder(
        EncodeOptions(codec=codec, encoder="software")
    )


@pytest.mark.skipif(nvenc is None, reason="needs a machine without NVENC")
@pytest.mark.parametrize("codec", CODECS)
def test_missing_nvenc_is_an_error_with_the_remedy(codec):
    with pytest.raises(EncodeError) as caught:
        pick_encoder(EncodeOptions(codec=codec, encoder="nvenc"))
    assert f"{HARDWARE[codec]} does not work here" in str(caught.value)
    assert str(caught.value).endswith("set it to auto")


@pytest.mark.skipif(nvenc is None, reason="needs a machine without NVENC")
def test_missing_nvenc_is_noticed_before_a_clip_is_denoised(model):
    with pytest.raises(EncodeError, match="h264_nvenc does not work here"):
        Renderer(model("wan2.1"), PipelineSettings(device="cpu", encoder="nvenc"))


@pytest.mark.parametrize("codec", CODECS)
def test_ffmpeg_knows_every_nvenc_option_and_takes_its_value(codec, monkeypatch):
    """Without a device: FFmpeg parses the options before it looks for one."""
    name, options = HARDWARE[codec], encode.nvenc_options(EncodeOptions(codec=codec))
    assert accepts_options(codec, name)
    for option in options:  # an unknown name would be ignored, so a wrong value must be refused
        monkeypatch.setattr(encode, "nvenc_options", lambda _, option=option: options | {option: "wrong"})
        assert not accepts_options(codec, name), option


@pytest.mark.parametrize(("crf", "quality"), [(0, "1"), (1, "1"), (18, "18")])
def test_the_best_quality_is_not_the_zero_that_means_automatic(crf, quality):
    assert encode.nvenc_options(EncodeOptions(crf=crf))["cq"] == quality


def test_an_encoder_that_ffmpeg_does_not_have_accepts_nothing():
    assert not accepts_options("h264", "h264_of_tomorrow")


WITHOUT_DELAY = {
    "h264": {"preset": "ultrafast", "tune": "zerolatency", "crf": "8"},
    "hevc": {"preset": "ultrafast", "tune": "zerolatency", "crf": "8", "x265-params": "log-level=error"},
    "av1": {"preset": "12", "crf": "8", "svtav1-params": "lookahead=0:pred-struct=1:lp=1"},
}


@pytest.fixture
def stand_in(monkeypatch):
    """A software encoder without delay takes the place of NVENC: same choice, same muxing, same fragments."""
    monkeypatch.setattr(encode, "HARDWARE", SOFTWARE)
    monkeypatch.setattr(encode, "SOFTWARE", dict.fromkeys(SOFTWARE, "none"))
    monkeypatch.setattr(encode, "nvenc_options", lambda options: WITHOUT_DELAY[options.codec])
    return lambda **options: EncodeOptions(encoder="nvenc", **options)


@pytest.mark.parametrize(("codec", "tag"), [("h264", "avc1"), ("hevc", "hvc1"), ("av1", "av01")])
def test_the_nvenc_branch_muxes_a_packet_per_frame_with_the_standard_tag(stand_in, codec, tag):
    frames, fragments = moving(6), []
    clip = spooled_clip(len(frames), on_fragment=fragments.append)
    encoder = ClipEncoder(clip, (WIDTH, HEIGHT), len(frames), stand_in(codec=codec))
    for number, frame in enumerate(frames, start=1):
        encoder.write(frame[None])
        assert encoder._muxed == number  # nothing waits inside the encoder
    encoder.finish()
    clip.publish()
    assert len(fragments) > len(frames)  # the header, then one per frame
    live, finished = b"".join(fragments), b"".join(clip.chunks())
    for data in (live, finished):
        assert len(shown(data)) == len(frames)
        assert tag.encode() in data
        assert b"hev1" not in data


@pytest.mark.parametrize(
    ("codec", "pixel_format"),
    [
        ("h264", "yuv422p"),
        ("h264", "yuv420p10"),
        ("h264", "yuv422p10"),
        ("hevc", "yuv422p"),
        ("hevc", "yuv420p10"),
        ("hevc", "yuv422p10"),
        ("av1", "yuv420p10"),
    ],
)
def test_the_nvenc_branch_encodes_more_chroma_and_ten_bits(stand_in, codec, pixel_format):
    options = stand_in(codec=codec, pixel_format=pixel_format)
    picture = torch.linspace(-1, 1, WIDTH).expand(3, 2, HEIGHT, WIDTH)
    frames = torch.empty(2, *options.layout.frame_shape(HEIGHT, WIDTH), dtype=torch.uint8)
    options.layout.convert(picture, frames)
    sink = io.BytesIO()
    clip = spooled_clip(2, on_fragment=sink.write)
    encoder = ClipEncoder(clip, (WIDTH, HEIGHT), 2, options)
    encoder.write(frames.numpy())
    encoder.finish()
    with av.open(io.BytesIO(sink.getvalue())) as file:
        (first, _) = file.decode(video=0)
    assert first.format.name == options.layout.ffmpeg_name
    expected = encode.to_video_frame(frames.numpy()[0], options.layout)
    luma = [_first_plane(frame).astype(int) for frame in (first, expected)]
    assert np.abs(luma[0] - luma[1]).mean() < 0.01 * luma[1].max()


def _first_plane(frame):
    plane = frame.planes[0]
    kind = np.uint16 if "10" in frame.format.name else np.uint8
    rows = np.frombuffer(memoryview(plane), kind).reshape(plane.height, -1)
    return rows[:, : plane.width]


MIN_SIDE = 145
STAND_IN = "libx265"


@pytest.fixture
def small_refused(monkeypatch):
    """Another codec takes the place of H.264 NVENC. It refuses small frames and 4:2:2 when it is opened, as a
    GPU does.

    Returns the sizes with which it was opened.
    """
    opened, open_encoder = [], encode.open_encoder

    def open_large(context):
        if context.codec.name == STAND_IN:
            opened.append((context.width, context.height))
            if min(opened[-1]) < MIN_SIDE or "422" in context.pix_fmt:
                raise av.error.ArgumentError(22, "Invalid argument")
        open_encoder(context)

    monkeypatch.setattr(encode, "open_encoder", open_large)
    monkeypatch.setattr(encode, "HARDWARE", HARDWARE | {"h264": STAND_IN})
    monkeypatch.setattr(encode, "nvenc_options", lambda _: WITHOUT_DELAY["hevc"])
    encode._known_problem.cache_clear()
    yield opened
    encode._known_problem.cache_clear()


def encoded_with(setting, size, pixel_format="yuv420p"):
    """The codec of a clip of one frame."""
    options = EncodeOptions(encoder=setting, pixel_format=pixel_format)
    clip = spooled_clip(1)
    encoder = ClipEncoder(clip, size, 1, options)
    encoder.write(np.full((1, *options.layout.frame_shape(size[1], size[0])), 128, np.uint8))
    encoder.finish()
    clip.publish()
    with av.open(io.BytesIO(b"".join(clip.chunks()))) as file:
        return file.streams.video[0].codec_context.name


@pytest.mark.parametrize("setting", ["auto", "nvenc"])
def test_a_clip_that_is_too_small_for_nvenc_is_encoded_in_software(small_refused, setting):
    assert encoded_with(setting, (MIN_SIDE + 1, MIN_SIDE + 1)) == "hevc"
    assert encoded_with(setting, (128, 128)) == "h264"
    assert encoded_with(setting, (256, 128)) == "h264"
    assert encoded_with(setting, (256, 256)) == "hevc"


@pytest.mark.parametrize("setting", ["auto", "nvenc"])
def test_a_format_that_nvenc_does_not_have_is_encoded_in_software(small_refused, setting):
    """4:2:2 needs a recent GPU. The request was admitted, so its job must not fail."""
    assert encoded_with(setting, (256, 256), "yuv422p10") == "h264"
    assert encoded_with(setting, (256, 256)) == "hevc"


def test_a_setting_that_nvenc_cannot_follow_is_refused_before_the_first_clip(small_refused):
    with pytest.raises(EncodeError, match="libx265 does not encode yuv422p10 here; set it to auto"):
        check_encoder("h264", "nvenc", "yuv422p10")
    check_encoder("h264", "nvenc", "yuv420p")


def test_nvenc_is_tried_once_for_each_size(small_refused):
    for _ in range(3):
        for size in ((320, 192), (128, 128)):
            pick_encoder(EncodeOptions(), size)
    assert small_refused == [(256, 256), (320, 192), (128, 128)]


@pytest.mark.parametrize("setting", ["auto", "nvenc"])
def test_the_canary_passes_on_a_gpu_whose_nvenc_does_not_encode_its_size(model, small_refused, setting):
    tiny = model("wan2.1")
    renderer = Renderer(tiny, PipelineSettings(device="cpu", encoder=setting))
    golden = canary.make_golden(tiny, renderer)
    assert canary.measure_drift(golden, tiny, renderer) <= golden.tolerance
    request = canary.canary_request(tiny)
    assert (request.width, request.height) in small_refused, "NVENC was asked first"


def test_the_doctor_says_what_each_nvenc_encoder_has_proven(monkeypatch):
    problems = {"hevc_nvenc": "Operation not permitted", "av1_nvenc": "UnknownCodecError"}

    def probe(_codec, name, pixel_format):
        has_no_422 = (name, pixel_format) == ("h264_nvenc", "yuv422p")
        return "it does not encode yuv422p" if has_no_422 else problems.get(name)

    monkeypatch.setattr(doctor, "probe_encoder", probe)
    monkeypatch.setattr(doctor, "accepts_options", lambda _codec, name: name == "hevc_nvenc")
    found = {each.subject: each.message for each in doctor._encoders() if "NVENC" in each.subject}
    assert found == {
        "h264 NVENC": "h264_nvenc encoded frames in yuv420p, yuv420p10, yuv422p10; "
        "not yuv422p: it does not encode yuv422p",
        "hevc NVENC": "hevc_nvenc is not available on this machine (Operation not permitted); "
        "using libx265; FFmpeg accepts its options",
        "av1 NVENC": "av1_nvenc is not available on this machine (UnknownCodecError); "
        "using libsvtav1; FFmpeg has no such encoder",
    }


def test_the_doctor_encodes_a_frame_in_every_format_of_a_codec():
    found = {each.subject: each.message for each in doctor._encoders() if "encoder" in each.subject}
    assert found == {
        f"{codec} encoder": f"{encode.SOFTWARE[codec]} encoded frames in {', '.join(formats)}"
        for codec, formats in FORMATS.items()
    }


def test_an_encoder_is_available_if_it_encodes_a_frame():
    assert probe_encoder("h264", "libx264") is None
    assert probe_encoder("h264", "no_such_encoder")
