"""Latents to MP4: the full-size Wan 2.1 VAE on a GPU, a tiny one on a CPU. Prints one JSON line."""

import sys

import torch

from filmgate.cli import main

if __name__ == "__main__":
    on_gpu = ["--vae", "wan2.1", "--size", "1280x720", "--frames", "81"]
    on_cpu = ["--vae", "wan-tiny", "--size", "128x128", "--frames", "17"]
    sys.argv = ["filmgate", "bench", "decode", *(on_gpu if torch.cuda.is_available() else on_cpu), "--json"]
    main()
