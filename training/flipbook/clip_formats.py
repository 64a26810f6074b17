"""The clip formats the model is trained on. All of them are cut into the same number of tokens.

One token count means one compiled graph for every format, and batches of equal cost.
"""

from training.flipbook.networks import PATCH, SPACE_STRIDE, TIME_STRIDE
from training.flipbook.renderer import Format

TOKENS = 576

# How often each is drawn: the default clip half of the time, then wide, tall, short and long ones.
SHARES = {
    Format(256, 256, 33): 0.50,
    Format(384, 192, 29): 0.11,
    Format(192, 384, 29): 0.09,
    Format(384, 256, 21): 0.08,
    Format(256, 384, 21): 0.06,
    Format(256, 192, 45): 0.06,
    Format(192, 256, 45): 0.04,
    Format(192, 192, 61): 0.06,
}


def latent_grid(size: Format) -> tuple[int, int, int]:
    """Latent frames, height and width of a clip."""
    return (size.frames - 1) // TIME_STRIDE + 1, size.height // SPACE_STRIDE, size.width // SPACE_STRIDE


def count_tokens(size: Format) -> int:
    frames, height, width = latent_grid(size)
    return frames * (height // PATCH) * (width // PATCH)
