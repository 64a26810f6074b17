"""Filmgate: video generation on GPUs you control. The public Python surface is in `__all__`."""

__version__ = "0.1.0"
