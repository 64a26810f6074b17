"""The Python API: filmgate.save_video and filmgate.stream_frames."""

import gc
import threading
from fractions import Fraction

import av
import numpy as np
import pytest
import torch

import filmgate
from filmgate.errors import DecodeError, ModelError, UsageError
from filmgate.pipeline.decode import open_decoder
from filmgate.pipeline.decode.base import decode_frames
from filmgate.pipeline.transfer.colour import Rgb24
from tests.zoo_vaes import RECIPES, TIME_FIRST, draw_latents

pytestmark = pytest.mark.usefixtures("no_thread_left")


def as_bytes(vae, latents):
    """Decode the latents to uint8 [n, h, w, 3]."""
    decoder = open_decoder(vae)
    frames = torch.cat(list(decode_frames(decoder, decoder.to_vae_latents(latents))), dim=1)
    out = torch.empty(frames.shape[1], *frames.shape[2:], 3, dtype=torch.uint8)
    Rgb24().convert(frames, out)  # tested in test_colour
    return out.numpy()


@pytest.mark.parametrize("name", RECIPES)
def test_streamed_frames_equal_the_decoded_frames(vae, name):
    latents = draw_latents(name, vae(name))
    chunks = list(filmgate.stream_frames(vae(name), latents))
    assert all(chunk.dtype == np.uint8 for chunk in chunks)
    assert np.array_equal(np.concatenate(chunks), as_bytes(vae(name), latents))


def test_streamed_frames_stay_valid_after_the_next_chunk(vae):
    latents = draw_latents("wan2.1", vae("wan2.1"), 12)
    kept = list(filmgate.stream_frames(vae("wan2.1"), latents))
    assert [len(chunk) for chunk in kept] == [1] + [4] * 11
    assert np.array_equal(np.concatenate(kept), as_bytes(vae("wan2.1"), latents))


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_video_contains_every_frame(vae, name, tmp_path):
    latents = draw_latents(name, vae(name))
    path = filmgate.save_video(vae(name), latents, str(tmp_path / "clip.mp4"), fps=12)
    with av.open(str(path)) as video:
        assert video.streams.video[0].average_rate == 12
        frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    assert np.stack(frames).shape == as_bytes(vae(name), latents).shape


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_the_generator_stops_the_decoder(vae, taken):
    calls = []
    hook = vae("wan2.1").decoder.register_forward_hook(lambda *_: calls.append(1))
    try:
        frames = filmgate.stream_frames(vae("wan2.1"), draw_latents("wan2.1", vae("wan2.1"), 60))
        for _ in range(taken):
            next(frames)
        frames.close()
    finally:
        hook.remove()
    assert len(calls) < 40
    assert not [t for t in threading.enumerate() if t.name.startswith("filmgate-")]


def test_leaving_the_loop_early_leaves_no_thread(vae):
    for _ in filmgate.stream_frames(vae("wan2.1"), draw_latents("wan2.1", vae("wan2.1"), 40)):
        break
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name.startswith("filmgate-")]


def test_an_error_is_raised_after_the_chunks_before_it(vae):
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("the driver crashed")

    hook = vae("wan2.1").decoder.register_forward_hook(fail)
    received = []
    try:
        with pytest.raises(RuntimeError, match="the driver crashed"):
            for frames in filmgate.stream_frames(vae("wan2.1"), draw_latents("wan2.1", vae("wan2.1"), 9)):
                received.append(len(frames))  # noqa: PERF401 - keeps the chunks before the error
    finally:
        hook.remove()
    assert received in ([], [1], [1, 4], [1, 4, 4])


def test_a_bfloat16_vae_accepts_float32_latents(tmp_path):
    from tests.zoo_vaes import build_vae

    vae = build_vae("wan2.1").to(torch.bfloat16)
    assert filmgate.save_video(vae, draw_latents("wan2.1", vae, 2), tmp_path / "clip.mp4").exists()


def test_clips_are_saved_and_streamed_inside_inference_mode(vae, tmp_path):
    latents = draw_latents("wan2.1", vae("wan2.1"))
    outside = filmgate.save_video(vae("wan2.1"), latents, tmp_path / "outside.mp4")
    with torch.inference_mode():
        inside = filmgate.save_video(vae("wan2.1"), latents.clone(), tmp_path / "inside.mp4")
        streamed = list(filmgate.stream_frames(vae("wan2.1"), latents.clone()))
    assert inside.read_bytes() == outside.read_bytes()
    assert np.array_equal(np.concatenate(streamed), as_bytes(vae("wan2.1"), latents))


def test_the_default_device_of_torch_does_not_matter(vae, tmp_path):
    """Many scripts call torch.set_default_device("cuda"). Without a GPU, tensors on "meta" cannot be read."""
    latents = draw_latents("cogvideox", vae("cogvideox"))
    with torch.device("meta"):
        path = filmgate.save_video(vae("cogvideox"), latents, tmp_path / "clip.mp4")
    with av.open(str(path)) as video:
        assert len(list(video.decode(video=0))) == len(as_bytes(vae("cogvideox"), latents))


def spoilt(latents, value):
    latents = latents.clone()
    latents.view(-1)[3] = value
    return latents


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_latents_with_nan_or_infinity_are_rejected(vae, name, value, tmp_path):
    latents = spoilt(draw_latents(name, vae(name)), value)
    with pytest.raises(DecodeError, match="the latents contain NaN or infinity"):
        filmgate.save_video(vae(name), latents, tmp_path / "clip.mp4")
    with pytest.raises(DecodeError, match="the latents contain NaN or infinity"):
        next(filmgate.stream_frames(vae(name), latents))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", RECIPES)
def test_the_wrong_number_of_channels_is_rejected(vae, name, tmp_path):
    latents = draw_latents(name, vae(name))
    axis = 2 if name in TIME_FIRST else 1
    more = torch.cat([latents, latents], dim=axis)
    expected = f"needs {latents.shape[axis]} latent channels, but the latents have {more.shape[axis]}"
    with pytest.raises(UsageError, match=expected):
        filmgate.save_video(vae(name), more, tmp_path / "clip.mp4")


@pytest.mark.parametrize("name", RECIPES)
def test_a_batch_of_two_is_rejected(vae, name, tmp_path):
    latents = torch.cat([draw_latents(name, vae(name))] * 2)
    with pytest.raises(UsageError, match="the latents of one clip"):
        filmgate.save_video(vae(name), latents, tmp_path / "clip.mp4")


@pytest.mark.parametrize("name", RECIPES)
def test_latents_without_frames_are_rejected(vae, name, tmp_path):
    with pytest.raises(UsageError, match="the latents are empty"):
        filmgate.save_video(vae(name), draw_latents(name, vae(name), 0), tmp_path / "clip.mp4")


def test_packed_ltx_latents_are_rejected_with_the_call_that_unpacks_them(vae, tmp_path):
    with pytest.raises(UsageError, match="_unpack_latents"):
        filmgate.save_video(vae("ltx"), torch.zeros(1, 12, 8), tmp_path / "clip.mp4")


@pytest.mark.parametrize(
    ("fps", "rate"), [(Fraction(30000, 1001), Fraction(30000, 1001)), (np.float32(12), 12), (7, 7)]
)
def test_the_frame_rate_is_any_kind_of_number(vae, fps, rate, tmp_path):
    latents = draw_latents("wan2.1", vae("wan2.1"), 2)
    with av.open(str(filmgate.save_video(vae("wan2.1"), latents, tmp_path / "clip.mp4", fps=fps))) as video:
        assert video.streams.video[0].average_rate == rate


@pytest.mark.parametrize("fps", [0, -5, Fraction(0), float("nan"), float("inf"), 0.0001])
def test_an_invalid_frame_rate_is_rejected(vae, fps, tmp_path):
    with pytest.raises(UsageError, match="frames per second"):
        filmgate.save_video(
            vae("wan2.1"), draw_latents("wan2.1", vae("wan2.1")), tmp_path / "clip.mp4", fps=fps
        )


def test_an_unknown_vae_is_rejected_by_name(tmp_path):
    from diffusers import AutoencoderKL

    with pytest.raises(ModelError, match="Filmgate cannot decode with AutoencoderKL;"):
        filmgate.save_video(AutoencoderKL(), torch.zeros(1, 4, 1, 4, 4), tmp_path / "clip.mp4")
