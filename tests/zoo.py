"""Small random-weight pipelines of every family, built in code from the real classes, without a download."""

from typing import Any

import diffusers
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from tests.zoo_vaes import build_vae

TEXT_WIDTH = 32
IMAGE_WIDTH = 32


def build_pipeline(name: str) -> Any:
    """The pipeline `name`, with the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipe = BUILDERS[name]()
    for component in pipe.components.values():
        if isinstance(component, torch.nn.Module):
            component.eval()
    return pipe


def _umt5() -> Any:
    config = transformers.UMT5Config(
        vocab_size=384, d_model=TEXT_WIDTH, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    return transformers.UMT5EncoderModel(config)


def build_t5() -> Any:
    config = transformers.T5Config(
        vocab_size=384, d_model=TEXT_WIDTH, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    return transformers.T5EncoderModel(config)


def _wan_transformer(channels: int, **others: Any) -> Any:
    return diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=others.pop("in_channels", channels),
        out_channels=channels,
        text_dim=TEXT_WIDTH,
        freq_dim=64,
        ffn_dim=64,
        num_layers=2,
        **others,
    )


def _wan_parts(vae: str) -> dict[str, Any]:
    return {
        "tokenizer": ByT5Tokenizer(),
        "text_encoder": _umt5(),
        "vae": build_vae(vae),
        "scheduler": diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    }


LLAMA = {
    "vocab_size": 400,
    "hidden_size": TEXT_WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 3,  # the pipeline reads the third layer from the end
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def _wan21() -> Any:
    return diffusers.WanPipeline(**_wan_parts("wan2.1"), transformer=_wan_transformer(4))


def _wan22_5b() -> Any:
    return diffusers.WanPipeline(
        **_wan_parts("wan2.2"), transformer=_wan_transformer(8), expand_timesteps=True
    )


def _wan22_two_experts() -> Any:
    return diffusers.WanPipeline(
        **_wan_parts("wan2.1"),
        transformer=_wan_transformer(4),
        transformer_2=_wan_transformer(4),
        boundary_ratio=0.875,
    )


def _wan_image() -> Any:
    # Latents, image latents and a mask with one channel per pixel frame: 36 in the released model.
    transformer = _wan_transformer(4, in_channels=4 + 4 + 4, image_dim=IMAGE_WIDTH, added_kv_proj_dim=24)
    vision = transformers.CLIPVisionModel(_clip_vision())
    return diffusers.WanImageToVideoPipeline(
        **_wan_parts("wan2.1"),
        transformer=transformer,
        image_encoder=vision,
        image_processor=transformers.CLIPImageProcessor(),
    )


def _ltx(vae: str = "ltx") -> Any:
    return diffusers.LTXPipeline(
        tokenizer=ByT5Tokenizer(),
        text_encoder=build_t5(),
        vae=build_vae(vae),
        transformer=diffusers.LTXVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            num_attention_heads=4,
            attention_head_dim=8,
            cross_attention_dim=32,
            num_layers=1,
            caption_channels=TEXT_WIDTH,
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )


def _ltx_095() -> Any:
    return _ltx("ltx-0.9.5")


def _cogvideox_parts(channels: int, sample_size: int = 8, **others: Any) -> dict[str, Any]:
    return {
        "tokenizer": ByT5Tokenizer(),
        "text_encoder": build_t5(),
        "vae": build_vae("cogvideox"),
        "transformer": diffusers.CogVideoXTransformer3DModel(
            num_attention_heads=4,
            attention_head_dim=16,  # a quarter for time, three eighths each for height and width, all even
            in_channels=channels,
            out_channels=4,
            time_embed_dim=2,
            text_embed_dim=TEXT_WIDTH,
            num_layers=1,
            sample_width=sample_size,
            sample_height=sample_size,
            sample_frames=9,
            patch_size=2,
            temporal_compression_ratio=4,
            max_text_seq_length=226,
            use_rotary_positional_embeddings=True,
            **others,
        ),
        "scheduler": diffusers.CogVideoXDDIMScheduler(),
    }


def _cogvideox() -> Any:
    return diffusers.CogVideoXPipeline(**_cogvideox_parts(4))


def _cogvideox15() -> Any:
    # Two latent frames per token: an odd number of them is padded by one in front. The sample size of the
    # released model is the range of its positions.
    parts = _cogvideox_parts(4, sample_size=300, patch_size_t=2, patch_bias=False)
    return diffusers.CogVideoXPipeline(**parts)


def _cogvideox_image() -> Any:
    """Its positions are weights, as in CogVideoX-5b-I2V: it renders one size only."""
    parts = _cogvideox_parts(8, use_learned_positional_embeddings=True)
    return diffusers.CogVideoXImageToVideoPipeline(**parts)


def _hunyuanvideo() -> Any:
    return diffusers.HunyuanVideoPipeline(
        text_encoder=transformers.LlamaModel(transformers.LlamaConfig(**LLAMA)), **_hunyuanvideo_parts(4)
    )


def _hunyuanvideo_image() -> Any:
    """A Llava encodes the image with the text: 576 patches replace <image> in the template."""
    parts = _hunyuanvideo_parts(9, image_condition_type="latent_concat")  # latents, image latents and a mask
    image_token = parts["tokenizer"].convert_tokens_to_ids("<image>")
    vision = _clip_vision().to_dict() | {"image_size": 336, "patch_size": 14}
    llava = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**LLAMA, pad_token_id=2),
        vision_config=transformers.CLIPVisionConfig(**vision),
        image_token_index=image_token,
        pad_token_id=2,
    )
    return diffusers.HunyuanVideoImageToVideoPipeline(
        text_encoder=transformers.LlavaForConditionalGeneration(llava),
        image_processor=transformers.CLIPImageProcessor(size=336, crop_size=336),
        **parts,
    )


def _hunyuanvideo_parts(channels: int, **transformer: Any) -> dict[str, Any]:
    clip = transformers.CLIPTextConfig(
        vocab_size=400,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=8,
        eos_token_id=1,
        bos_token_id=0,
        pad_token_id=2,
    )
    return {
        "tokenizer": _trained_tokenizer(),
        "tokenizer_2": _trained_tokenizer(),
        "text_encoder_2": transformers.CLIPTextModel(clip),
        "vae": build_vae("hunyuanvideo"),
        "transformer": diffusers.HunyuanVideoTransformer3DModel(
            in_channels=channels,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=10,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            patch_size=2,
            patch_size_t=1,
            guidance_embeds=True,
            text_embed_dim=TEXT_WIDTH,
            pooled_projection_dim=8,
            rope_axes_dim=(2, 4, 4),
            **transformer,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
    }


def _svd() -> Any:
    vision = transformers.CLIPVisionModelWithProjection(_clip_vision(projection_dim=IMAGE_WIDTH))
    unet = diffusers.UNetSpatioTemporalConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=32,
        in_channels=8,
        out_channels=4,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        cross_attention_dim=IMAGE_WIDTH,
        num_attention_heads=(4, 8),
        projection_class_embeddings_input_dim=96,
        addition_time_embed_dim=32,
        num_frames=14,
    )
    scheduler = diffusers.EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        interpolation_type="linear",
        prediction_type="v_prediction",
        sigma_min=0.002,
        sigma_max=700.0,
        steps_offset=1,
        timestep_spacing="leading",
        timestep_type="continuous",
        use_karras_sigmas=True,
    )
    return diffusers.StableVideoDiffusionPipeline(
        vae=build_vae("svd"),
        image_encoder=vision,
        unet=unet,
        scheduler=scheduler,
        feature_extractor=transformers.CLIPImageProcessor(),
    )


def _clip_vision(**others: Any) -> Any:
    return transformers.CLIPVisionConfig(
        hidden_size=IMAGE_WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=224,
        patch_size=56,
        **others,
    )


def _trained_tokenizer() -> Any:
    """Byte pairs trained on HunyuanVideo's template, so the prompt starts where the pipeline expects it."""
    from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE

    bytes_to_tokens = Tokenizer(models.BPE())
    bytes_to_tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_to_tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "<pad>", "<image>", "<|end_header_id|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bytes_to_tokens.train_from_iterator([DEFAULT_PROMPT_TEMPLATE["template"]], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_to_tokens,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=77,
        padding_side="right",
    )


BUILDERS = {
    "wan2.1": _wan21,
    "wan2.2-5b": _wan22_5b,
    "wan2.2-two-experts": _wan22_two_experts,
    "wan-image": _wan_image,
    "ltx": _ltx,
    "ltx-0.9.5": _ltx_095,
    "cogvideox": _cogvideox,
    "cogvideox-1.5": _cogvideox15,
    "cogvideox-image": _cogvideox_image,
    "hunyuanvideo": _hunyuanvideo,
    "hunyuanvideo-image": _hunyuanvideo_image,
    "svd": _svd,
}
