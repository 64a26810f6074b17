"""The folder for compiled kernels and for the results of their trials on this machine."""

import getpass
import os
import tempfile
from pathlib import Path

from filmgate.settings import PipelineSettings

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def set_cache_folder(settings: PipelineSettings) -> None:
    """Use `pipeline.compile_cache`. Call this before anything is compiled."""
    if settings.compile_cache:
        os.environ[CACHE_VARIABLE] = settings.compile_cache  # torch reads only this variable


def cache_folder() -> Path:
    """The folder that torch uses: the variable, else a folder per user beside the temporary files."""
    default = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    return Path(os.environ.get(CACHE_VARIABLE) or default)
