"""What a clip starts from: an image that was sent, the image of an earlier video, or an earlier clip."""

from collections.abc import Iterable
from dataclasses import dataclass

from filmgate.admission.uploads.images import MEDIA_TYPE, clean_image
from filmgate.admission.uploads.urls import FetchLimits, fetch
from filmgate.errors import InvalidField, JobActive, ObjectNotFound, SettingsError, UrlNotAllowed
from filmgate.jobs import Job, JobId, JobState, Source, SourceKind, TenantId
from filmgate.models.requests import VideoRequest
from filmgate.scheduling.base import JobReader
from filmgate.settings import AdmissionSettings
from filmgate.settings.wording import parse_names
from filmgate.store.base import UPLOAD_PART, ObjectName, ObjectStore


@dataclass(frozen=True, slots=True)
class Origin:
    """What a request starts from: where the worker finds it, and the earlier videos of the same tenant whose
    clip or reference image is used.
    """

    source: Source | None = None
    clip: Job | None = None
    image: Job | None = None


def parse_hosts(text: str) -> frozenset[str]:
    """The hosts in `admission.fetch_hosts`. Raises SettingsError for a URL, a port or a pattern."""
    hosts = parse_names(text.lower())
    if wrong := sorted(host for host in hosts if any(char in host for char in "/*:@")):
        raise SettingsError(
            f"{wrong[0]!r} is not the name of a host, such as cdn.example.com", option="admission.fetch_hosts"
        )
    return hosts


class Sources:
    """Finds what a request starts from, and reads the image that is stored with the new job.

    Every job has its own copy of its image: it is deleted with the job, whatever happens to the video it was
    first sent for.
    """

    def __init__(self, reader: JobReader, store: ObjectStore, settings: AdmissionSettings) -> None:
        self._reader = reader
        self._store = store
        self._settings = settings
        self._limits = FetchLimits(
            settings.fetch_seconds, settings.image_max_bytes, hosts=parse_hosts(settings.fetch_hosts)
        )

    def find(self, tenant_id: TenantId, request: VideoRequest) -> Origin:
        """Raises JobNotFound, JobActive and InvalidField."""
        kind = request.source_kind
        if kind is None:
            return Origin()
        if request.source_id is None:
            image = self._find_image(tenant_id, request.image_from) if request.image_from else None
            return Origin(Source(kind, part=UPLOAD_PART, media_type=MEDIA_TYPE), image=image)
        option = "video_id" if kind is SourceKind.REMIX else "video"
        job = self._find_clip(tenant_id, request.source_id, option)
        # A remix renders a new prompt from the same noise and the same image: it does not need the clip.
        if kind is SourceKind.REMIX and job.spec.has_image:
            return Origin(Source(kind, job.id, UPLOAD_PART, MEDIA_TYPE), job, image=job)
        if kind is SourceKind.REMIX or job.clip is None:
            return Origin(Source(kind, job.id), job)
        return Origin(Source(kind, job.id, job.clip.part, job.clip.media_type), job)

    def _find_clip(self, tenant_id: TenantId, job_id: JobId, option: str) -> Job:
        """The completed job that a remix, an edit or an extension starts from. `option` has its id."""
        source = self._reader.find(tenant_id, job_id)
        if source.state is JobState.FAILED:
            raise InvalidField(
                "the source video has failed and has no clip; use another video", option=option
            )
        if source.state is not JobState.COMPLETED:
            raise JobActive("the source video is not finished; wait for the status completed", option=option)
        return source

    def _find_image(self, tenant_id: TenantId, job_id: JobId) -> Job:
        """The job whose image is used again: in any state, the image is stored before the job exists."""
        job = self._reader.find(tenant_id, job_id)
        if not job.spec.has_image:
            raise InvalidField(
                "this video was not made from an image; use another video, or send an image",
                option="input_reference.video_id",
            )
        return job

    def read_image(self, request: VideoRequest, origin: Origin) -> Iterable[bytes] | None:
        """The image to store with the new job, None for a request without one. Raises UsageError
        subclasses.
        """
        if origin.image is None:
            return self._read_upload(request)
        try:
            return self._store.read(ObjectName(origin.image.tenant_id, origin.image.id, UPLOAD_PART))
        except ObjectNotFound as exc:
            option = "input_reference.video_id" if request.image_from is not None else "video_id"
            raise InvalidField(
                "the image of this video is no longer stored; create a video with the image itself",
                option=option,
            ) from exc

    def _read_upload(self, request: VideoRequest) -> Iterable[bytes] | None:
        """The image that was sent, or fetched from a URL, decoded and encoded again."""
        upload = request.image
        if request.image_url is not None:
            if not self._settings.fetch:
                raise UrlNotAllowed(
                    "fetching URLs is disabled; upload the image", option="input_reference.image_url"
                )
            upload = fetch(request.image_url, self._limits)
        return [clean_image(upload, self._settings)] if upload is not None else None
