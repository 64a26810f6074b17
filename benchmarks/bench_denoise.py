"""The denoiser's forward pass: eager, compiled, guidance as one batch, cached text. One JSON line."""

import subprocess
import sys

if __name__ == "__main__":
    command = [sys.executable, "-m", "filmgate", "bench", "denoise", "--json", *sys.argv[1:]]
    subprocess.run(command, check=True)
