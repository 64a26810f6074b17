"""Whether the fast decoder is faster than the exact one on this GPU."""

import torch

from filmgate.catalog.gpus import can_decode_fast
from filmgate.pipeline import trials
from filmgate.pipeline.decode.base import WHOLE_FRAME, Vae, VideoDecoder
from filmgate.pipeline.decode.fast.decoder import FastDecoder, pipeline_latents
from filmgate.pipeline.trials import Trial, network_key, time_both

LATENTS = (32, 52)  # rows and columns: 416x256, small enough for every GPU


def may_be_fast(vae: Vae) -> bool:
    """Whether `auto` tries the fast decoder on the GPU of this VAE."""
    return can_decode_fast(torch.cuda.get_device_capability(vae.device))


def wins_trial(decoder: FastDecoder, vae: Vae) -> bool:
    """Whether the fast decoder is faster than the exact one here: as kept on disk, or timed now."""
    key = network_key("decoder", type(vae).__name__, vae.config, vae.dtype, vae.device)
    return trials.wins_trial(key, lambda: run_trial(decoder, vae))


@torch.inference_mode()
def run_trial(decoder: FastDecoder, vae: Vae) -> Trial:
    """Decode the same clip with both."""
    noise = pipeline_latents(vae, LATENTS)

    def decode(one: VideoDecoder) -> None:
        for _ in one.chunks(one.to_vae_latents(noise), WHOLE_FRAME):
            pass

    return time_both(lambda: decode(decoder), lambda: decode(decoder.exact), noise.device)
