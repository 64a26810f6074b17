"""Pixel formats: 4:2:0 and 4:2:2, 8 and 10 bits, from decoded frames to the file and its stills."""

import io

import av
import numpy as np
import pytest
import torch
from av.codec.codec import Codec
from PIL import Image

from filmgate.errors import UsageError
from filmgate.jobs import StillKind
from filmgate.models.pixel_formats import FORMATS as CODEC_FORMATS
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.encode.encoder import (
    HARDWARE,
    ClipEncoder,
    EncodeOptions,
    check_encoder,
    encoder_format,
    to_video_frame,
)
from filmgate.pipeline.encode.stills import StillPaths, Stills
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.transfer.colour import PlanarYuv, Yuv420, yuv_layout
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request
from tests.spools import spooled_clip

WIDTH, HEIGHT, FRAMES = 64, 48, 4
FORMATS = {
    "yuv420p": "yuv420p",
    "yuv420p10": "yuv420p10le",
    "yuv422p": "yuv422p",
    "yuv422p10": "yuv422p10le",
}


def ramp():
    """Frames with slow changes of colour, [3, n, height, width] in [-1, 1]."""
    rows, columns = torch.linspace(-0.8, 0.8, HEIGHT)[:, None], torch.linspace(-0.8, 0.8, WIDTH)
    picture = torch.stack([rows.expand(-1, WIDTH), columns.expand(HEIGHT, -1), -rows.expand(-1, WIDTH)])
    return picture[:, None].repeat(1, FRAMES, 1, 1)


def converted(pixel_format):
    layout = yuv_layout(pixel_format)
    out = torch.empty(FRAMES, *layout.frame_shape(HEIGHT, WIDTH), dtype=torch.uint8)
    layout.convert(ramp(), out)
    return layout, out.numpy()


def as_rgb(frame):
    shown = frame.to_ndarray(format="rgb48le", src_colorspace="ITU709", src_color_range="MPEG")
    return shown.astype(np.float64) / 32767.5 - 1


@pytest.mark.parametrize("pixel_format", FORMATS)
def test_frames_keep_their_colours_in_every_format(pixel_format):
    layout, frames = converted(pixel_format)
    frame = to_video_frame(frames[0], layout)
    assert (frame.format.name, frame.width, frame.height) == (FORMATS[pixel_format], WIDTH, HEIGHT)
    expected = ramp()[:, 0].permute(1, 2, 0).numpy()
    assert np.abs(as_rgb(frame) - expected)[2:-2, 2:-2].mean() < 0.02


def test_ten_bits_are_finer_than_eight():
    def error(pixel_format):
        layout = yuv_layout(pixel_format)
        grey = torch.linspace(-0.9, 0.9, WIDTH * HEIGHT).view(1, 1, HEIGHT, WIDTH).expand(3, -1, -1, -1)
        out = torch.empty(1, *layout.frame_shape(HEIGHT, WIDTH), dtype=torch.uint8)
        layout.convert(grey, out)
        wide = out.view(torch.int16) if pixel_format.endswith("10") else out
        luma = wide[0, :HEIGHT].double() / (4 if pixel_format.endswith("10") else 1)
        return float((luma - (grey[0, 0].double() * 109.5 + 125.5)).abs().max())

    assert error("yuv420p10") < 0.13 < error("yuv420p") <= 0.51


def test_eight_bit_420_equals_the_layout_with_its_own_kernel():
    found, expected = (torch.empty(FRAMES, HEIGHT * 3 // 2, WIDTH, dtype=torch.uint8) for _ in range(2))
    PlanarYuv(has_all_rows=False, bits=8).convert(ramp(), found)
    Yuv420.convert_in_torch(ramp(), expected)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("pixel_format", FORMATS)
@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_every_software_encoder_writes_the_formats_it_has(codec, pixel_format):
    options = EncodeOptions(codec=codec, encoder="software", crf=8, pixel_format=pixel_format)
    if (codec, "422" in pixel_format) == ("av1", True):
        with pytest.raises(UsageError, match="libsvtav1 does not encode yuv422p") as caught:
            check_encoder(codec, "software", pixel_format)
        assert caught.value.option == "pipeline.pixel_format"
        return
    layout, frames = converted(pixel_format)
    fragments = io.BytesIO()
    clip = spooled_clip(FRAMES, on_fragment=fragments.write)
    encoder = ClipEncoder(clip, (WIDTH, HEIGHT), FRAMES, options)
    encoder.write(frames)
    encoder.finish()
    with av.open(io.BytesIO(fragments.getvalue())) as file:
        decoded = list(file.decode(video=0))
    assert [frame.format.name for frame in decoded] == [FORMATS[pixel_format]] * FRAMES
    assert np.abs(as_rgb(decoded[0]) - as_rgb(to_video_frame(frames[0], layout))).mean() < 0.03


@pytest.mark.parametrize("codec", CODEC_FORMATS)
def test_admission_knows_what_the_encoder_of_each_codec_can_write(codec):
    def can_write(pixel_format):
        try:
            check_encoder(codec, "software", pixel_format)
        except UsageError:
            return False
        return True

    assert [one for one in FORMATS if can_write(one)] == list(CODEC_FORMATS[codec])


@pytest.mark.parametrize(
    ("pixel_format", "expected"),
    [("yuv420p", "yuv420p"), ("yuv420p10", "p010le"), ("yuv422p", "nv16"), ("yuv422p10", "p210le")],
)
@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_nvenc_gets_the_same_values_with_interleaved_chroma(codec, pixel_format, expected):
    """The conversion is FFmpeg's and needs no device."""
    options = EncodeOptions(codec=codec, pixel_format=pixel_format)
    assert encoder_format(Codec(HARDWARE[codec], "w"), options) == expected
    layout, frames = converted(pixel_format)
    frame = to_video_frame(frames[0], layout)
    back = frame.reformat(format=expected).reformat(format=layout.ffmpeg_name)
    assert all(bytes(one) == bytes(other) for one, other in zip(frame.planes, back.planes, strict=True))


def test_stills_are_made_from_ten_bits_too():
    layout, frames = converted("yuv422p10")
    made = {}
    stills = Stills(StillPaths(), FRAMES, lambda kind, data: made.update({kind: data}), layout)
    stills.add(frames)
    stills.save()
    with Image.open(io.BytesIO(made[StillKind.PREVIEW])) as picture:
        shown = np.asarray(picture.convert("RGB"), np.float64) / 127.5 - 1
    assert np.abs(shown - ramp()[:, 0].permute(1, 2, 0).numpy()).mean() < 0.05


def test_each_clip_of_a_renderer_has_the_format_of_its_request(model, tmp_path):
    loaded = model("wan2.1")
    renderer = Renderer(loaded, PipelineSettings(device="cpu"))
    written = []
    for pixel_format in ("yuv422p10", None):
        request = make_clip_request(loaded, size="16x16", frames=1, steps=1, pixel_format=pixel_format)
        path = tmp_path / f"{pixel_format}.mp4"
        renderer.render(request, path, ClipOutputs(), Control())
        with av.open(path) as file:
            written.append(file.streams.video[0].codec_context.pix_fmt)
    assert written == ["yuv422p10le", "yuv420p"]
