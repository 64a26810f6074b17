"""Colour conversion compared with float64 arithmetic, with swscale, and after encoding."""

from contextlib import closing

import av
import numpy as np
import pytest
import torch
from av.video.reformatter import Interpolation

from filmgate.errors import UsageError
from filmgate.pipeline.encode.clip_file import ClipFile
from filmgate.pipeline.encode.encoder import ClipEncoder, EncodeOptions
from filmgate.pipeline.transfer.colour import Rgb24, Yuv420

HEIGHT, WIDTH = 32, 48
AREA = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.BITEXACT
COLOURS = {
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "skin": (224, 172, 138),
    "grey": (118, 118, 118),
}


def flat(colour):
    return np.broadcast_to(np.array(colour, np.uint8), (1, HEIGHT, WIDTH, 3)).copy()


def ramps():
    along, down = np.meshgrid(np.linspace(0, 255, WIDTH), np.linspace(0, 255, HEIGHT))
    return np.stack([along, down, 255 - along], axis=-1).round().astype(np.uint8)[None]


def noise(count=4):
    return np.random.default_rng(0).integers(0, 256, (count, HEIGHT, WIDTH, 3), dtype=np.uint8)


PICTURES = {**{name: flat(rgb) for name, rgb in COLOURS.items()}, "ramps": ramps(), "noise": noise()}


def to_frames(pictures: np.ndarray) -> torch.Tensor:
    """Convert uint8 [n, h, w, 3] to the output format of a decoder: [3, n, h, w] in [-1, 1]."""
    return torch.from_numpy(pictures).permute(3, 0, 1, 2).float() / 127.5 - 1


def to_planes(frames: torch.Tensor) -> np.ndarray:
    out = torch.empty(frames.shape[1], *Yuv420().frame_shape(*frames.shape[2:]), dtype=torch.uint8)
    Yuv420().convert(frames, out)
    return out.numpy()


def reference(frames: torch.Tensor) -> np.ndarray:
    """ITU-R BT.709, limited range, chroma averaged over 2 x 2, in float64 without rounding."""
    red, green, blue = (frames.double().numpy() + 1) / 2
    luma = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    differences = (blue - luma) / 1.8556, (red - luma) / 1.5748
    count, height, width = luma.shape
    halved = [d.reshape(count, height // 2, 2, width // 2, 2).mean((2, 4)) for d in differences]
    planes = [16 + 219 * luma, *(128 + 224 * d for d in halved)]
    return np.concatenate([p.reshape(count, -1) for p in planes], axis=1).reshape(count, -1, width)


@pytest.mark.parametrize("name", PICTURES)
def test_yuv_is_within_one_of_the_float64_reference(name):
    frames = to_frames(PICTURES[name])
    assert np.abs(to_planes(frames) - reference(frames)).max() <= 0.5001  # the rounding error


def test_frames_that_are_not_multiples_of_a_255th_are_rounded_once():
    frames = torch.rand(3, 2, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1)) * 2 - 1
    assert np.abs(to_planes(frames) - reference(frames)).max() <= 0.5001


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_frames_are_converted_in_float32(dtype):
    frames = to_frames(noise(1)).to(dtype)
    assert np.array_equal(to_planes(frames), to_planes(frames.float()))


def test_overshoot_is_clipped_to_the_legal_range():
    planes = to_planes(torch.randn(3, 2, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(2)) * 9)
    luma, chroma = planes[:, :HEIGHT], planes[:, HEIGHT:]
    assert (luma.min(), luma.max()) == (16, 235)
    assert 16 <= chroma.min() <= chroma.max() <= 240


@pytest.mark.parametrize("name", PICTURES)
def test_yuv_is_within_one_of_swscale_with_accurate_rounding(name):
    """The area filter of swscale averages chroma over 2 x 2 pixels too. Its default filter, bicubic, uses
    more pixels, which changes the chroma of noise by up to 26 of 255 and does not change luma."""
    for picture, ours in zip(PICTURES[name], to_planes(to_frames(PICTURES[name])), strict=True):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        theirs = frame.reformat(
            format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG", interpolation=AREA
        )
        assert np.abs(theirs.to_ndarray().astype(int) - ours).max() <= 1


def test_the_default_filter_of_swscale_differs_only_in_chroma():
    frame = av.VideoFrame.from_ndarray(PICTURES["noise"][0], format="rgb24")
    theirs = frame.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG").to_ndarray()
    difference = np.abs(theirs.astype(int) - to_planes(to_frames(PICTURES["noise"]))[0])
    assert difference[:HEIGHT].max() <= 1
    assert difference[HEIGHT:].max() > 1


def test_rgb_is_converted_without_loss():
    out = torch.empty(4, HEIGHT, WIDTH, 3, dtype=torch.uint8)
    Rgb24().convert(to_frames(PICTURES["noise"]), out)
    assert np.array_equal(out.numpy(), PICTURES["noise"])


@pytest.mark.parametrize("size", [(31, 48), (32, 47), (1, 1)])
def test_an_odd_size_is_rejected_with_the_option(size):
    with pytest.raises(UsageError, match="even width and height") as caught:
        Yuv420().frame_shape(*size)
    assert caught.value.option == "--size"


def encoded(picture, path, **options):
    frames = to_planes(to_frames(picture))
    with closing(ClipFile(path, {})) as clip:
        settings = EncodeOptions(encoder="software", **options)
        encoder = ClipEncoder(clip, (WIDTH, HEIGHT), 4 * len(frames), settings)
        for _ in range(4):
            encoder.write(frames)
        encoder.finish()
        clip.publish()
    return path


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
@pytest.mark.parametrize("name", ["red", "skin"])
def test_a_flat_colour_changes_by_at_most_three_levels(name, codec, tmp_path):
    path = encoded(PICTURES[name], tmp_path / "clip.mp4", codec=codec, crf=10)
    with av.open(str(path)) as clip:
        frame = next(clip.decode(video=0))
        shown = frame.to_ndarray(format="rgb24")  # uses the colour tags of the file
    assert np.abs(shown.astype(int) - COLOURS[name]).max() <= 3


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1"])
def test_the_file_is_tagged_as_bt709_limited_range(codec, tmp_path):
    path = encoded(PICTURES["ramps"], tmp_path / "clip.mp4", codec=codec)
    with av.open(str(path)) as clip:
        context = clip.streams.video[0].codec_context
        tags = (context.color_primaries, context.color_trc, context.colorspace, context.color_range)
    assert tags == (1, 1, 1, 1)
