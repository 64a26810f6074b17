"""Uploads a diffusers folder as a version: files first, the manifest last. Overwrites nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filmgate.models.weights.manifest import build_manifest
from filmgate.models.weights.remote import Remote


@dataclass(frozen=True, slots=True)
class PushResult:
    """The version after a push, and how many files the push uploaded."""

    url: str
    files: int
    size_bytes: int
    uploaded_files: int
    is_already_published: bool


def push_folder(folder: Path, remote: Remote, report: Callable[[str], None] | None = None) -> PushResult:
    """Uploads missing files, then publishes. Raises UsageError if the version has other files."""
    manifest = build_manifest(folder)
    is_new = remote.require_new(manifest)
    uploaded = 0
    for file in manifest.files if is_new else ():
        if report is not None:
            report(file.path)
        uploaded += remote.push_file(folder, file)
    if is_new:
        remote.push_manifest(manifest)
    return PushResult(
        remote.location.url,
        len(manifest.files),
        manifest.total_bytes,
        uploaded,
        is_already_published=not is_new,
    )
