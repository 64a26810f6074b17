"""One suite for every VAE: the streamed frames equal those of diffusers' decode."""

import os
from contextlib import contextmanager
from inspect import signature
from itertools import count, zip_longest

import pytest
import torch
from diffusers import LTXPipeline

from filmgate.pipeline.decode import open_decoder
from filmgate.pipeline.decode.base import WHOLE_FRAME, Rung, decode_frames
from filmgate.pipeline.decode.whole import available_host_bytes
from filmgate.pipeline.loading.loader import use_channels_last
from tests.zoo_vaes import RECIPES, build_vae, draw_latents

EXACT = ("wan2.1", "wan2.2", "cogvideox")
LTX = ("ltx", "ltx-0.9.5")
WHOLE_CLIP = ("hunyuanvideo1.5", "mochi", "cosmos")


def vae_latents(vae, name, frames, **others):
    with torch.inference_mode():
        return open_decoder(vae).to_vae_latents(draw_latents(name, vae, frames, **others))


def decoded(vae, latents, rung=WHOLE_FRAME, latents_per_chunk=1):
    with torch.inference_mode():
        chunks = open_decoder(vae, latents_per_chunk).chunks(latents, rung)
        return torch.cat([chunk.clone() for chunk in chunks], dim=1)


@torch.inference_mode()
def by_diffusers(vae, latents):
    """[3, T, H, W] from the VAE's own decode; LTX 0.9.5 needs a timestep, the default of its pipeline."""
    needs_time = getattr(vae.config, "timestep_conditioning", False)
    default = signature(LTXPipeline.__call__).parameters["decode_timestep"].default
    timestep = (torch.tensor([default]),) if needs_time else ()
    return vae.decode(latents, *timestep, return_dict=False)[0][0].clamp(-1, 1)


@contextmanager
def diffusers_modes(vae, tile=None):
    """Enable diffusers' framewise mode, and its tiling with tiles of `tile` pixels, for the block."""
    before = dict(vars(vae))
    if hasattr(vae, "use_framewise_decoding"):
        vae.use_framewise_decoding = True
    if tile:
        vae.enable_tiling()
        vae.tile_sample_min_height = vae.tile_sample_min_width = tile
        vae.tile_sample_stride_height = vae.tile_sample_stride_width = tile * 3 // 4
        vae.tile_latent_min_height = vae.tile_latent_min_width = tile // 16  # HunyuanVideo 1.5 reads these
    try:
        yield
    finally:
        vars(vae).clear()
        vars(vae).update(before)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("name", EXACT)
def test_causal_vaes_stream_the_exact_bits_of_decode(vae, name, frames):
    latents = vae_latents(vae(name), name, frames)
    assert torch.equal(decoded(vae(name), latents), by_diffusers(vae(name), latents))


@pytest.mark.parametrize(("frames", "together"), [(1, 2), (4, 2), (5, 2), (6, 4), (4, 9)])
@pytest.mark.parametrize("name", ["wan2.1", "wan2.2"])
def test_wan_decodes_several_latent_frames_per_chunk_to_the_same_frames(vae, name, frames, together):
    latents = vae_latents(vae(name), name, frames)
    frames_together = decoded(vae(name), latents, latents_per_chunk=together)
    torch.testing.assert_close(frames_together, by_diffusers(vae(name), latents), rtol=0, atol=1e-5)


def test_the_first_chunk_is_one_frame_and_later_chunks_are_full(vae):
    latents = vae_latents(vae("wan2.1"), "wan2.1", 6)
    decoder = open_decoder(vae("wan2.1"), latents_per_chunk=2)
    chunks = [chunk.shape[1] for chunk in decode_frames(decoder, latents)]
    assert chunks == [1, 8, 8, 4]
    assert decoder.shape(latents).chunk_frames == 8


@pytest.mark.parametrize("name", [n for n in RECIPES if "wan" not in n])
def test_latents_per_chunk_does_not_change_other_vaes(vae, name):
    latents = vae_latents(vae(name), name, 3)
    assert open_decoder(vae(name), 4).shape(latents) == open_decoder(vae(name)).shape(latents)


@pytest.mark.parametrize("name", RECIPES)
def test_channels_last_weights_decode_to_the_same_frames(name):
    plain, converted = build_vae(name), build_vae(name)
    use_channels_last(converted)
    latents = vae_latents(plain, name, 3)
    rung = open_decoder(plain).rungs(latents)[0]
    expected = decoded(plain, latents, rung, latents_per_chunk=2)
    torch.testing.assert_close(decoded(converted, latents, rung, 2), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("frames", [1, 3, 5, 6, 7, 8])
def test_hunyuanvideo_streams_the_frames_of_its_default_framewise_decoding(vae, frames):
    latents = vae_latents(vae("hunyuanvideo"), "hunyuanvideo", frames)
    assert vae("hunyuanvideo").use_framewise_decoding
    assert torch.equal(decoded(vae("hunyuanvideo"), latents), by_diffusers(vae("hunyuanvideo"), latents))


@pytest.mark.parametrize("frames", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("name", LTX)
def test_ltx_streams_the_frames_of_a_whole_clip_decode(vae, name, frames):
    latents = vae_latents(vae(name), name, frames)
    assert not vae(name).use_framewise_decoding
    torch.testing.assert_close(
        decoded(vae(name), latents), by_diffusers(vae(name), latents), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", LTX)
@pytest.mark.parametrize(("frames", "values"), [(2, 1 << 26), (7, 20_000)])
def test_ltx_tiles_stream_the_frames_of_a_tiled_whole_clip_decode(vae, monkeypatch, name, frames, values):
    # With few values per layer, tiles of different sizes pass their layers in different chunks.
    monkeypatch.setattr("filmgate.pipeline.decode.ltx_layers._MAX_VALUES", values)
    latents = vae_latents(vae(name), name, frames, size=(4, 6))
    vae(name).enable_tiling(
        tile_sample_min_height=128,
        tile_sample_min_width=128,
        tile_sample_stride_height=96,
        tile_sample_stride_width=96,
    )
    try:
        expected = by_diffusers(vae(name), latents)
    finally:
        vae(name).disable_tiling()
    torch.testing.assert_close(decoded(vae(name), latents, Rung("tiles", 128)), expected, rtol=0, atol=1e-5)


@pytest.fixture
def noisy_ltx():
    """An LTX-Video VAE whose layers add noise."""
    vae = build_vae("ltx", decoder_inject_noise=(True,) * 5)
    for name, scale in vae.named_parameters():
        if "per_channel_scale" in name:
            torch.nn.init.constant_(scale, 0.3)
    return vae


def test_ltx_adds_one_plane_of_noise_per_layer_to_all_frames(noisy_ltx, monkeypatch):
    latents = vae_latents(noisy_ltx, "ltx", 6)
    found, draw, layers = decoded(noisy_ltx, latents), torch.randn, count()

    def draw_seeded(size, **others):
        return draw(size, **others | {"generator": torch.Generator().manual_seed(next(layers))})

    monkeypatch.setattr(torch, "randn", draw_seeded)
    torch.testing.assert_close(found, by_diffusers(noisy_ltx, latents), rtol=0, atol=1e-5)
    assert next(layers) > 2


def test_ltx_adds_the_same_noise_to_every_clip_and_leaves_the_random_numbers_of_others_alone(noisy_ltx):
    latents, before = vae_latents(noisy_ltx, "ltx", 3), torch.get_rng_state()
    assert torch.equal(decoded(noisy_ltx, latents), decoded(noisy_ltx, latents))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", LTX)
@pytest.mark.parametrize("values", [1, 20_000])
def test_ltx_gives_the_same_frames_however_few_enter_a_layer_at_once(vae, monkeypatch, name, values):
    monkeypatch.setattr("filmgate.pipeline.decode.ltx_layers._MAX_VALUES", values)
    latents = vae_latents(vae(name), name, 9)
    expected = by_diffusers(vae(name), latents)
    torch.testing.assert_close(decoded(vae(name), latents), expected, rtol=0, atol=1e-5)


def test_ltx_yields_frames_before_it_has_read_the_whole_clip(vae, monkeypatch):
    monkeypatch.setattr("filmgate.pipeline.decode.ltx_layers._MAX_VALUES", 1)
    latents = vae_latents(vae("ltx"), "ltx", 40)
    changed = latents.clone()
    changed[:, :, 30:] = 0
    with torch.inference_mode():
        first, again = (next(open_decoder(vae("ltx")).chunks(z, WHOLE_FRAME)) for z in (latents, changed))
    assert torch.equal(first, again)


@pytest.mark.parametrize("frames", [2, 7])
def test_hunyuanvideo_streams_the_frames_of_tiled_framewise_decoding(vae, frames):
    latents = vae_latents(vae("hunyuanvideo"), "hunyuanvideo", frames, size=(5, 5))
    with diffusers_modes(vae("hunyuanvideo"), 32):
        expected = by_diffusers(vae("hunyuanvideo"), latents)
    assert torch.equal(decoded(vae("hunyuanvideo"), latents, Rung("tiles", 32)), expected)


@pytest.mark.parametrize("batch", [1, 2, 4, 5])
def test_svd_chunks_equal_decode_of_each_chunk(vae, batch):
    latents = vae_latents(vae("svd"), "svd", 5)
    with torch.inference_mode():
        parts = latents[0].transpose(0, 1).split(batch)
        expected = torch.cat([vae("svd").decode(p, num_frames=len(p)).sample for p in parts])
    frames = decoded(vae("svd"), latents, Rung("n", batch_frames=batch))
    assert torch.equal(frames, expected.transpose(0, 1).clamp(-1, 1))


def test_the_svd_ladder_starts_with_the_whole_clip(vae):
    decoder = open_decoder(vae("svd"))
    assert [r.batch_frames for r in decoder.rungs(vae_latents(vae("svd"), "svd", 5))] == [5, 4, 2, 1]
    assert [r.batch_frames for r in decoder.rungs(torch.zeros(1, 4, 25, 2, 2))] == [25, 14, 8, 4, 2, 1]


@pytest.mark.parametrize("name", WHOLE_CLIP)
def test_whole_clip_vaes_yield_the_frames_of_decode(vae, name):
    latents = vae_latents(vae(name), name, 3)
    assert torch.equal(decoded(vae(name), latents), by_diffusers(vae(name), latents))


@pytest.mark.parametrize(("name", "tile", "size"), [("hunyuanvideo1.5", 64, (3, 5)), ("mochi", 32, (5, 5))])
def test_whole_clip_vaes_tile_as_diffusers_does(vae, name, tile, size):
    latents = vae_latents(vae(name), name, 2, size=size)
    with diffusers_modes(vae(name), tile):
        expected = by_diffusers(vae(name), latents)
    assert torch.equal(decoded(vae(name), latents, Rung("tiles", tile)), expected)


def test_hunyuanvideo_15_on_a_small_host_steps_down_to_tiles_and_says_so(vae, monkeypatch, caplog):
    """On a CPU nothing reports that memory ran out: the masks of the attention must fit from the start."""
    latents, taken = vae_latents(vae("hunyuanvideo1.5"), "hunyuanvideo1.5", 1, size=(17, 2)), []
    masks = 4 * 34**2
    for available, expected in ((masks, ["whole frame"]), (masks - 1, ["whole frame", "256 px tiles"])):
        monkeypatch.setattr("filmgate.pipeline.decode.whole.available_host_bytes", lambda n=available: n)
        taken.clear()
        for _ in decode_frames(open_decoder(vae("hunyuanvideo1.5")), latents, taken.append):
            pass
        assert [rung.name for rung in taken] == expected
    assert "memory ran out on this rung" in caplog.text


def test_the_memory_of_the_host_is_known_on_linux_and_macos(monkeypatch):
    assert available_host_bytes() > 0
    monkeypatch.setattr(os, "sysconf_names", {"SC_PHYS_PAGES": 1})
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert available_host_bytes() == 40960


def test_hunyuanvideo_15_tiles_when_memory_is_short_and_cosmos_never(vae):
    hunyuan, cosmos = (open_decoder(vae(name)) for name in ("hunyuanvideo1.5", "cosmos"))
    latents = torch.zeros(1, 4, 2, 45, 80)
    assert [r.tile_pixels for r in hunyuan.rungs(latents)] == [None, 256, 128]
    assert list(cosmos.rungs(torch.zeros(1, 4, 2, 90, 160))) == [WHOLE_FRAME]


@pytest.mark.parametrize("name", RECIPES)
def test_every_family_decodes_what_its_own_pipeline_decodes_by_default(vae, name):
    """Whatever the size: tiles and windows that the VAE does not use by default need a lack of memory."""
    latents = vae_latents(vae(name), name, 5, size=(6, 8))
    frames = torch.cat(list(decode_frames(open_decoder(vae(name)), latents)), dim=1)
    if name == "svd":  # its pipeline decodes as many frames at once as the clip has
        parts = latents[0].transpose(0, 1)
        with torch.inference_mode():
            expected = vae(name).decode(parts, num_frames=len(parts)).sample.transpose(0, 1).clamp(-1, 1)
    else:
        expected = by_diffusers(vae(name), latents)
    torch.testing.assert_close(frames, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("frames", [1, 2, 3, 7])
@pytest.mark.parametrize("name", RECIPES)
def test_the_shape_is_known_before_decoding(vae, name, frames):
    latents = vae_latents(vae(name), name, frames)
    predicted = open_decoder(vae(name)).shape(latents)
    chunks = list(decode_frames(open_decoder(vae(name)), latents))
    assert sum(chunk.shape[1] for chunk in chunks) == predicted.frames
    assert {tuple(chunk.shape[2:]) for chunk in chunks} == {(predicted.height, predicted.width)}
    assert max(chunk.shape[1] for chunk in chunks) <= predicted.chunk_frames


@pytest.mark.parametrize(("name", "tile"), [("wan2.1", 32), ("wan2.2", 64)])
def test_wan_tiles_stream_and_equal_diffusers_tiles(vae, name, tile):
    latents = vae_latents(vae(name), name, 3, size=(5, 7))
    with diffusers_modes(vae(name), tile):
        expected = by_diffusers(vae(name), latents)
    with torch.inference_mode():
        chunks = list(open_decoder(vae(name)).chunks(latents, Rung("tiles", tile)))
    assert [chunk.shape[1] for chunk in chunks] == [1, 4, 4]
    assert torch.equal(torch.cat(chunks, dim=1), expected)


@pytest.mark.parametrize("name", EXACT)
def test_offloaded_caches_give_the_same_frames(vae, name):
    latents = vae_latents(vae(name), name, 4, size=(4, 5))
    tile = 32 if name != "wan2.2" else 64
    on_device = decoded(vae(name), latents, Rung("tiles", tile))
    assert torch.equal(decoded(vae(name), latents, Rung("tiles", tile, is_cache_offloaded=True)), on_device)


@pytest.mark.parametrize("name", RECIPES)
def test_two_clips_can_share_a_vae(vae, name):
    one, other = (vae_latents(vae(name), name, frames, size=(2, 2), seed=frames) for frames in (3, 5))
    alone = [torch.cat(list(decode_frames(open_decoder(vae(name)), z)), dim=1) for z in (one, other)]
    decoder = open_decoder(vae(name))
    streams = [decode_frames(decoder, z) for z in (one, other)]
    rounds = list(zip_longest(*streams))
    together = [torch.cat([c for c in clip if c is not None], dim=1) for clip in zip(*rounds, strict=True)]
    assert all(torch.equal(t, a) for t, a in zip(together, alone, strict=True))


@pytest.mark.parametrize("name", RECIPES)
def test_decoding_does_not_change_the_vae(vae, name):
    latents = vae_latents(vae(name), name, 2, size=(2, 3))
    decoder = open_decoder(vae(name))
    before = {key: value for key, value in vars(vae(name)).items() if not key.startswith("_")}
    tiles = [Rung("tiles", 64 if "ltx" in name else 32)] if name not in ("svd", "cosmos") else []
    for rung in [decoder.rungs(latents)[0], *tiles]:
        decoded(vae(name), latents, rung)
    assert {key: value for key, value in vars(vae(name)).items() if not key.startswith("_")} == before
    cache = getattr(vae(name), "_feat_map", None)  # Wan's own cache, which the decoder must not fill
    assert not any(isinstance(entry, torch.Tensor) for entry in cache or [])


@pytest.mark.parametrize("name", ["wan2.1", "cogvideox", "ltx", "hunyuanvideo", "mochi"])
def test_a_vae_with_tiling_enabled_starts_with_tiles(vae, name):
    latents = torch.zeros(1, 4, 2, 64, 64)
    with diffusers_modes(vae(name), 128):
        assert open_decoder(vae(name)).rungs(latents)[0].tile_pixels is not None
    assert open_decoder(vae(name)).rungs(latents)[0] == WHOLE_FRAME
