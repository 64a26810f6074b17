"""A complete model folder of tiny size with untrained weights."""

import torch
from diffusers import WanPipeline
from training.flipbook.export import build_scheduler, export
from training.flipbook.networks import build_text_encoder, build_transformer, build_vae
from training.flipbook.tokenizer import build_tokenizer


def export_untrained(folder, sizes):
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    pipeline = WanPipeline(
        tokenizer=tokenizer,
        text_encoder=build_text_encoder(sizes, len(tokenizer)),
        vae=build_vae(sizes),
        scheduler=build_scheduler(),
        transformer=build_transformer(sizes),
    )
    export(pipeline, folder)
    return folder
