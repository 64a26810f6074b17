"""Opens the decode benchmark on a VAE with random weights, or on the VAE of a real model."""

from functools import partial

import torch

from filmgate.jobs import Size
from filmgate.pipeline.bench.decode import DecodeBench
from filmgate.pipeline.bench.vaes import VAES, build_vae, random_latents
from filmgate.pipeline.decode import open_decoder
from filmgate.pipeline.encode.encoder import EncodeOptions, threads_up_to
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.loading.memory import choose_device, choose_dtype
from filmgate.settings import PipelineSettings


def open_bench(
    name: str, size: str, frames: int, rounds: int, settings: PipelineSettings
) -> tuple[DecodeBench, dict[str, object]]:
    """The benchmark, and the settings to report with its figures."""
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    width, height = Size.parse(size)
    if name in VAES:
        vae = build_vae(name, device, dtype)
        recipe = name
    else:
        vae = load_model(name, settings).pipe.vae
        recipe = _recipe_like(vae)
    draw = partial(random_latents, recipe, (width, height), frames, vae)
    threads = threads_up_to(settings.encoder_threads)
    options = EncodeOptions(preset=settings.preset, crf=settings.crf, encoder="software", threads=threads)
    decoder = open_decoder(vae, choice="exact")
    shape = decoder.shape(decoder.to_vae_latents(draw()))
    about: dict[str, object] = {
        "vae": name,
        "width": shape.width,
        "height": shape.height,
        "frames": shape.frames,
        "dtype": str(dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "encoder": f"x264 {options.preset} crf {options.crf}, {options.threads} threads",
        "decoder": settings.decoder,
        "rounds": rounds,
    }
    return DecodeBench(vae, draw, options, rounds, settings.decoder), about


def _recipe_like(vae: object) -> str:
    channels = getattr(vae.config, "z_dim", None) or vae.config.latent_channels  # type: ignore[attr-defined]
    same = (n for n, r in VAES.items() if r.class_name == type(vae).__name__ and r.channels == channels)
    return next(same)
