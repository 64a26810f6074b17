"""The diffusers internals that Filmgate uses. A diffusers version that changes one fails here by name."""

import inspect

import diffusers
import pytest

TILES = {"use_tiling", "tile_sample_min_height", "tile_sample_min_width"}
STRIDES = {"tile_sample_stride_height", "tile_sample_stride_width"}
WINDOWS = {"tile_sample_min_num_frames", "tile_sample_stride_num_frames"}
RATIOS = {"temporal_compression_ratio", "spatial_compression_ratio"}

ATTRIBUTES = {
    "wan2.1": {"_cached_conv_counts", "post_quant_conv", "decoder", "use_tiling"},
    "cogvideox": {"num_latent_frames_batch_size", "post_quant_conv", "decoder", *TILES},
    "ltx": {"latents_mean", "latents_std", "decoder", *TILES, *RATIOS},
    "hunyuanvideo": {"post_quant_conv", "decoder", "tiled_decode", *TILES, *STRIDES, *WINDOWS, *RATIOS},
    "hunyuanvideo1.5": {"tiled_decode", "tile_latent_min_height", "tile_latent_min_width", *TILES},
    "mochi": {"tiled_decode", *TILES, *STRIDES, *RATIOS},
}
CONFIGS = {
    "wan2.1": {
        "patch_size",
        "scale_factor_spatial",
        "temperal_downsample",
        "latents_mean",
        "latents_std",
        "z_dim",
    },
    "cogvideox": {
        "temporal_compression_ratio",
        "block_out_channels",
        "scaling_factor",
        "latent_channels",
        "norm_num_groups",
        "act_fn",
    },
    "ltx": {"timestep_conditioning", "scaling_factor", "latent_channels"},
    "hunyuanvideo": {"scaling_factor", "latent_channels"},
    "svd": {"block_out_channels", "scaling_factor", "latent_channels"},
    "hunyuanvideo1.5": {"scaling_factor", "latent_channels", *RATIOS},
    "mochi": {"scaling_factor", "latents_mean", "latents_std", "latent_channels"},
    "cosmos": {"latents_mean", "latents_std", "latent_channels", *RATIOS},
}
CALLS = {
    "wan2.1": {"decoder.forward": ("x", "feat_cache", "feat_idx", "first_chunk")},
    "cogvideox": {"decoder.forward": ("sample", "temb", "conv_cache")},
    "ltx": {"decoder.forward": ("hidden_states", "temb")},
    "hunyuanvideo": {"decoder.forward": ("hidden_states",), "tiled_decode": ("z", "return_dict")},
    "svd": {"decode": ("z", "num_frames", "return_dict")},
    "hunyuanvideo1.5": {"decode": ("z", "return_dict")},
    "mochi": {"decode": ("z", "return_dict")},
    "cosmos": {"decode": ("z", "return_dict")},
}
UNPACK = (
    "latents",
    "num_frames",
    "height",
    "width",
    "patch_size",
    "patch_size_t",
)


def differences(owner, attributes=(), config=(), calls=None) -> list[str]:
    """What `owner` no longer has, with the diffusers version, the class and the attribute."""
    name = f"diffusers {diffusers.__version__}: {type(owner).__name__}"
    gone = [f"{name}.{a} is gone" for a in sorted(attributes) if not hasattr(owner, a)]
    gone += [f"{name}.config.{key} is gone" for key in sorted(config) if key not in owner.config]
    for path, expected in (calls or {}).items():
        target = owner
        for part in path.split("."):
            target = getattr(target, part, None)
        found = tuple(inspect.signature(target).parameters) if target else None
        if found != expected:
            gone.append(f"{name}.{path} takes {found}, we pass {expected}")
    return gone


@pytest.mark.parametrize("name", sorted({*ATTRIBUTES, *CONFIGS, *CALLS}))
def test_the_internals_we_use_are_unchanged(vae, name):
    owner = vae(name)
    assert differences(owner, ATTRIBUTES.get(name, ()), CONFIGS.get(name, ()), CALLS.get(name)) == []


def test_wan_counts_its_cached_convolutions_for_the_decoder(vae):
    assert vae("wan2.1")._cached_conv_counts["decoder"] > 0
    from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

    assert tuple(inspect.signature(unpatchify).parameters) == ("x", "patch_size")


def test_ltx_unpacks_latents_with_the_arguments_we_pass():
    assert tuple(inspect.signature(diffusers.LTXPipeline._unpack_latents).parameters) == UNPACK


def test_ltx_pipelines_have_their_compression_ratios(model):
    names = {
        "vae_spatial_compression_ratio",
        "vae_temporal_compression_ratio",
        "transformer_spatial_patch_size",
        "transformer_temporal_patch_size",
    }
    assert differences(model("ltx").pipe, attributes=names) == []


def test_a_difference_names_the_version_the_class_and_the_attribute(vae):
    found = differences(vae("wan2.1"), {"_feat_cache_v9"}, {"tile"}, {"decoder.forward": ("x",)})
    here = f"diffusers {diffusers.__version__}: AutoencoderKLWan"
    assert found[:2] == [f"{here}._feat_cache_v9 is gone", f"{here}.config.tile is gone"]
    assert found[2].startswith(f"{here}.decoder.forward takes ('x', 'feat_cache'")
