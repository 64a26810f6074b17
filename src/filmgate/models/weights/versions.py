"""The version of a model's weights: the digest of its manifest, wherever its files are."""

from pathlib import Path

from filmgate.models.weights.entry import find_manifest
from filmgate.models.weights.manifest import build_manifest


def weights_digest(folder: Path) -> str:
    """SHA-256 over the paths, sizes and digests of all files. A pulled model has it in its cache entry;
    the files of any other folder are read once.
    """
    manifest = find_manifest(folder) or build_manifest(folder)
    return manifest.digest
