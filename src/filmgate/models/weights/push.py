"""A diffusers folder becomes a version in a bucket: files first, the manifest last, nothing overwritten."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filmgate.models.weights.manifest import build_manifest
from filmgate.models.weights.remote import Remote


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a push did."""

    url: str
    files: int
    size_bytes: int
    uploaded_files: int
    was_there: bool


def push_folder(folder: Path, remote: Remote, report: Callable[[str], None] | None = None) -> Pushed:
    """Upload what is not there yet, then publish. Raises UsageError when the version has other files."""
    manifest = build_manifest(folder)
    is_new = remote.require_new(manifest)
    uploaded = 0
    for file in manifest.files if is_new else ():
        if report is not None:
            report(file.path)
        uploaded += remote.push_file(folder, file)
    if is_new:
        remote.push_manifest(manifest)
    return Pushed(
        remote.location.url, len(manifest.files), manifest.total_bytes, uploaded, was_there=not is_new
    )
