"""Decodes uploaded images in a child process with limits on memory, time and pixels.

Image decoders are native code that parses untrusted bytes, so they never run in the server process. The
result is a new PNG without metadata.
"""

import subprocess
import sys

from filmgate.admission.uploads.image_child import REFUSED
from filmgate.errors import InvalidImage, UploadTooLarge
from filmgate.models.requests import UploadedFile
from filmgate.settings import AdmissionSettings

MEDIA_TYPE = "image/png"
_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF")


def clean_image(upload: UploadedFile, settings: AdmissionSettings) -> bytes:
    """The upload as a PNG: RGB, upright, without metadata. Raises UploadTooLarge and InvalidImage."""
    if upload.size_bytes > settings.image_max_bytes:
        raise UploadTooLarge(
            f"the image has {upload.size_bytes} bytes; the limit is {settings.image_max_bytes}",
            option=upload.option,
        )
    data = upload.data
    if not data.startswith(_SIGNATURES):
        raise InvalidImage("the image is not PNG, JPEG or WebP", option=upload.option)
    # Isolated mode and an empty environment: the child gets no secret and ignores the current folder.
    command = [
        sys.executable,
        "-I",
        "-m",
        "filmgate.admission.uploads.image_child",
        str(settings.image_max_pixels),
    ]
    try:
        done = subprocess.run(
            command,
            input=data,
            capture_output=True,
            timeout=settings.image_seconds,
            check=False,
            env={},
        )
    except subprocess.TimeoutExpired as exc:
        raise InvalidImage(
            "decoding the image timed out; send a smaller image", option=upload.option
        ) from exc
    if done.returncode == 0:
        return done.stdout
    reason = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode == REFUSED:
        raise InvalidImage(reason, option=upload.option)
    raise InvalidImage(
        "the image cannot be decoded; send a PNG, JPEG or WebP file that other programs open",
        option=upload.option,
    )
