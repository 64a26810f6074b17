"""Writes a full-size Wan pipeline with random weights to a folder: real time and memory, no download.

    python -m benchmarks.random_wan FOLDER --model wan2.1-1.3b

`--text-layers` shortens the text encoder, which takes most of the space and little of a clip's time.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.denoisers import DENOISERS, build_denoiser, build_text_encoder
from filmgate.pipeline.bench.vaes import build_vae

_VAES = {"wan-tiny": "wan-tiny"}
_BYTES = 384  # the vocabulary of the byte tokenizer


def write_pipeline(folder: Path, name: str, text_layers: int | None = None) -> None:
    """Build the pipeline on the GPU, or on the CPU for a small one, and save it in bfloat16."""
    import diffusers
    from transformers import ByT5Tokenizer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    recipe = DENOISERS[name]
    text = recipe.text_encoder | {"vocab_size": _BYTES}
    text |= {"num_layers": text_layers} if text_layers else {}
    pipe = diffusers.WanPipeline(
        tokenizer=ByT5Tokenizer(),
        text_encoder=build_text_encoder(replace(recipe, text_encoder=text), device, dtype),
        transformer=build_denoiser(name, device, dtype),
        vae=build_vae(_VAES.get(name, "wan2.1"), device, dtype),
        scheduler=diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    )
    pipe.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--model", choices=sorted(name for name in DENOISERS if name.startswith("wan")), default="wan2.1-1.3b"
    )
    parser.add_argument("--text-layers", type=int, default=None)
    options = parser.parse_args()
    write_pipeline(options.folder, options.model, options.text_layers)


if __name__ == "__main__":
    main()
