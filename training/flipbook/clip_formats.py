"""The clip formats of the training. All have the same number of tokens.

With one token count, one compiled graph serves every format, and all batches take the same time.
"""

from training.flipbook.networks import SPACE_STRIDE, TIME_STRIDE
from training.flipbook.renderer import Format

# The share of each format: half are the default clip, the others wide, tall, short or long.
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
    """The latent frames, height and width of a clip."""
    return (size.frames - 1) // TIME_STRIDE + 1, size.height // SPACE_STRIDE, size.width // SPACE_STRIDE
