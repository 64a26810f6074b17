"""What a clip starts from: an image that was sent, the image of an earlier video, or an earlier clip."""

from collections.abc import Iterable
from dataclasses import dataclass

from filmgate.admission.uploads import ReferenceImages
from filmgate.admission.uploads.images import MEDIA_TYPE
from filmgate.errors import InvalidField, JobActive, ObjectNotFound
from filmgate.jobs import Job, JobId, JobState, Source, SourceKind, TenantId
from filmgate.models.requests import VideoRequest
from filmgate.scheduling.base import JobReader
from filmgate.store.base import UPLOAD_PART, ObjectName, ObjectStore


@dataclass(frozen=True, slots=True)
class Origin:
    """The earlier videos of the same tenant that a request uses: their clip, their reference image."""

    clip: Job | None = None
    image: Job | None = None


class Sources:
    """Finds what a request starts from, and reads the image that is stored with the new job.

    Every job has its own copy of its image: it is deleted with the job, whatever happens to the video it was
    first sent for.
    """

    def __init__(self, reader: JobReader, store: ObjectStore, images: ReferenceImages) -> None:
        self._reader = reader
        self._store = store
        self._images = images

    def find(self, tenant_id: TenantId, request: VideoRequest) -> Origin:
        """Raises JobNotFound, JobActive and InvalidField."""
        if request.image_from is not None:
            return Origin(image=self._find_image(tenant_id, request.image_from))
        if request.source_id is None:
            return Origin()
        clip = self._find_clip(tenant_id, request.source_id)
        # A remix renders again what its source was rendered from. Edits and extensions start from its frames.
        is_from_image = request.verb is SourceKind.REMIX and clip.spec.has_image
        return Origin(clip, clip if is_from_image else None)

    def _find_clip(self, tenant_id: TenantId, job_id: JobId) -> Job:
        """The completed job that a remix, an edit or an extension starts from."""
        source = self._reader.find(tenant_id, job_id)
        if source.state is JobState.FAILED:
            raise InvalidField("the source video has failed and has no clip", option="video")
        if source.state is not JobState.COMPLETED:
            raise JobActive("the source video is not finished", option="video")
        return source

    def _find_image(self, tenant_id: TenantId, job_id: JobId) -> Job:
        """The job whose image is used again: in any state, the image is stored before the job exists."""
        job = self._reader.find(tenant_id, job_id)
        if not job.spec.has_image:
            raise InvalidField("this video was not made from an image", option="input_reference.video_id")
        return job

    def read_image(self, request: VideoRequest, origin: Origin) -> Iterable[bytes] | None:
        """The image to store with the new job, None for a request without one. Raises UsageError
        subclasses.
        """
        if origin.image is None:
            picture = self._images.read(request)
            return [picture.data] if picture is not None else None
        try:
            return self._store.read(ObjectName(origin.image.tenant_id, origin.image.id, UPLOAD_PART))
        except ObjectNotFound as exc:
            option = "input_reference.video_id" if request.image_from is not None else "video_id"
            raise InvalidField(
                "the image of this video is no longer stored; create a video with the image itself",
                option=option,
            ) from exc


def to_source(request: VideoRequest, origin: Origin) -> Source | None:
    """Where the worker finds what the clip starts from: this job's image or another job's clip."""
    kind, clip = request.source_kind, origin.clip
    if kind is None:
        return None
    if kind is SourceKind.IMAGE or origin.image is not None:
        return Source(kind, clip.id if clip is not None else None, UPLOAD_PART, MEDIA_TYPE)
    if clip is None or clip.clip is None or kind is SourceKind.REMIX:
        # A remix renders a new prompt from the same noise: it does not need the clip.
        return Source(kind, clip.id if clip is not None else None)
    return Source(kind, clip.id, clip.clip.part, clip.clip.media_type)
