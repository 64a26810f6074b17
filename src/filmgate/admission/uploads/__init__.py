"""Reference images: uploaded or fetched from a URL, then decoded in a child process."""

from filmgate.admission.uploads.images import Picture, clean_image
from filmgate.admission.uploads.urls import FetchLimits, fetch
from filmgate.errors import AddressRefused
from filmgate.models.requests import VideoRequest
from filmgate.settings import AdmissionSettings


class ReferenceImages:
    """Reads the reference image of a request."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        hosts = (host.strip().lower() for host in settings.fetch_hosts.split(","))
        self._limits = FetchLimits(
            settings.fetch_seconds, settings.image_max_bytes, hosts=frozenset(host for host in hosts if host)
        )

    def read(self, request: VideoRequest) -> Picture | None:
        """The decoded image, None for a request without one. Raises UsageError subclasses."""
        upload = request.image
        if request.image_url is not None:
            if not self._settings.fetch:
                raise AddressRefused(
                    "fetching URLs is disabled; upload the image", option="input_reference.image_url"
                )
            upload = fetch(request.image_url, self._limits)
        return clean_image(upload, self._settings) if upload is not None else None
