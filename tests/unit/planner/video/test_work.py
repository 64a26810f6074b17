"""Tokens, FLOPs and group norms match those counted on real forward passes."""

import pytest

from filmgate.jobs import Size
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.work import decode_work, forward_work, token_count

# model, width, height, frames: tokens, forward TFLOP, decode TFLOP, counted on the meta device
COUNTED = [
    ("wan2.1-t2v-1.3b", 832, 480, 81, 32760, 283.00, 275.35),
    ("wan2.1-t2v-14b", 1280, 720, 81, 75600, 6523.4, 639.22),
    ("wan2.2-ti2v-5b", 1280, 704, 121, 27280, 520.7, 2011.1),
    ("ltx-video-2b-0.9.0", 1280, 704, 121, 14080, 92.3, 95.1),
    ("ltx-video-13b-0.9.7", 832, 480, 121, 6240, 173.4, 61.2),
    ("hunyuanvideo", 1280, 720, 129, 118800, 12068.6, 3000.0),
    ("hunyuanvideo-1.5", 832, 480, 121, 48360, 1395.2, 1216.5),
    ("cogvideox-2b", 720, 480, 49, 17550, 120.0, 315.0),
    ("cogvideox-5b", 720, 480, 49, 17550, 332.2, 315.0),
    ("cogvideox-1.5-5b", 1360, 768, 81, 44880, 1479.1, 1571.7),
    ("mochi-1", 848, 480, 163, 44520, 1667.5, 1080.8),
    ("cosmos-predict2-2b-v2w", 1280, 704, 93, 84480, 1925.0, 717.0),
]


@pytest.mark.parametrize(("name", "width", "height", "frames", "tokens", "forward", "decode"), COUNTED)
def test_work_matches_the_counted_work(catalog, name, width, height, frames, tokens, forward, decode):
    model = catalog.video_model(name)
    clip = clip_for(model, size=Size(width, height), frames=frames)
    assert token_count(model, clip) == tokens
    assert forward_work(model, clip).flops / 1e12 == pytest.approx(forward, rel=0.005)
    assert decode_work(model, clip).flops / 1e12 == pytest.approx(decode, rel=0.055)


def test_attention_grows_with_the_square_of_the_tokens(catalog):
    model = catalog.video_model("wan2.1-t2v-14b")
    short = forward_work(model, clip_for(model, frames=81))
    long = forward_work(model, clip_for(model, frames=161))
    assert 3.7 < long.attention_flops / short.attention_flops < 3.9
    assert 1.9 < long.linear_flops / short.linear_flops < 2.0


def test_tiled_decoding_needs_more_arithmetic(catalog):
    model = catalog.video_model("wan2.1-t2v-14b")
    clip = clip_for(model)
    assert decode_work(model, clip, is_tiled=True).flops > 1.5 * decode_work(model, clip).flops


def test_group_norms_are_counted_for_decoders_that_have_them(catalog):
    def values(name):
        model = catalog.video_model(name)
        return decode_work(model, clip_for(model)).norm_values

    assert values("wan2.1-t2v-14b") == values("ltx-video-2b-0.9.0") == 0
    assert values("cogvideox-2b") == pytest.approx(32.02e9, rel=0.001)
    assert values("hunyuanvideo") > values("mochi-1") > 0
