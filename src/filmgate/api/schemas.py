"""Request and response bodies. Numbers in requests may be strings, because forms have only strings."""

import time
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, WithJsonSchema

from filmgate.api.forms import Form
from filmgate.api.services import Services
from filmgate.errors import JobNotFound
from filmgate.jobs import (
    JOB_ID_PATTERN,
    Job,
    JobId,
    JobState,
    Route,
    RouteReason,
    ScreeningAction,
    SourceKind,
    Stage,
    Ticket,
    VideoSpec,
)

_NUMBER = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\d{1,4}(\.\d{1,3})?$"}]}
_WHOLE = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d{1,18}$"}]}
Number = Annotated[float, WithJsonSchema(_NUMBER)]
# Limits are compared as floats: an integer of 400 digits does not fit into one.
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63), WithJsonSchema(_WHOLE)]
_REDUCED = "GPU memory ran out, so the clip was decoded in {}, which differs slightly from whole frames"


class ImageReference(Form):
    """An image by URL, or the image of an earlier video. `file_id`, which the SDK has, is not supported."""

    image_url: str | None = Field(default=None, max_length=2048)
    video_id: str | None = Field(
        default=None, description="A video that was created here from an image: use its image again."
    )
    file_id: str | None = None


class ClipReference(Form):
    """A video created here, by its id."""

    id: str


class CreateVideo(Form):
    """POST /v1/videos. `input_reference` is an image: a file in a form, or an object that names one."""

    prompt: str = Field(description="What the clip shows.", min_length=1)
    model: str | None = Field(
        default=None, description="A name of GET /v1/models. Defaults to the default model."
    )
    size: str | None = Field(default=None, description="WIDTHxHEIGHT", examples=["256x256"])
    seconds: Number | None = Field(default=None, description="Length of the clip in seconds.", examples=["2"])
    fps: Whole | None = Field(default=None, description="Frames per second.")
    steps: Whole | None = Field(
        default=None,
        validation_alias=AliasChoices("steps", "num_inference_steps"),
        description="Denoising steps.",
    )
    seed: Whole | None = Field(default=None, description="The same seed renders the same clip.")
    guidance: Number | None = Field(
        default=None,
        validation_alias=AliasChoices("guidance", "guidance_scale"),
        description="How closely the clip follows the prompt.",
    )
    lora: str | None = Field(
        default=None,
        description="Adapters: `NAME` or `NAME:SCALE`, separated by commas. `MODEL+NAME` means the same.",
    )
    quality: str | None = Field(
        default=None,
        description="One of the model's `quality_levels` in GET /v1/models. Defaults to "
        "`admission.default_quality`.",
    )
    pixel_format: str | None = Field(
        default=None,
        description="Chroma subsampling and bit depth: `yuv420p`, `yuv420p10`, `yuv422p` or `yuv422p10`. "
        "Browsers play `yuv420p` only. Defaults to `pipeline.pixel_format`.",
    )
    negative_prompt: str | None = Field(default=None, description="What the clip should not show.")
    input_reference: ImageReference | None = Field(default=None, description="The first frame.")


class RemixVideo(Form):
    """POST /v1/videos/{id}/remix."""

    prompt: str = Field(description="What the new clip shows.", min_length=1)
    quality: str | None = Field(
        default=None, description="Quality level. Defaults to the level of the source video."
    )


class EditVideo(RemixVideo):
    """POST /v1/videos/edits."""

    # Not for validation: a file in its place has an error of its own.
    model_config = ConfigDict(json_schema_extra={"required": ["prompt", "video"]})

    video: ClipReference | None = Field(
        default=None, description="The clip to edit.", examples=[{"id": "video_..."}]
    )
    seed: Whole | None = Field(default=None, description="Seed. Defaults to the seed of the source video.")


class ExtendVideo(EditVideo):
    """POST /v1/videos/extensions."""

    video: ClipReference | None = Field(
        default=None, description="The clip to extend.", examples=[{"id": "video_..."}]
    )
    seconds: Number | None = Field(default=None, description="Length of the extension.", examples=["2"])


class DigestPrompt(Form):
    """POST /v1/videos/prompt-digest."""

    prompt: str = Field(description="A prompt, exactly as it was sent.", min_length=1)


def to_job_id(video_id: str) -> JobId:
    """The id as a JobId. Malformed, unknown and foreign ids raise the same JobNotFound."""
    if not JOB_ID_PATTERN.fullmatch(video_id):
        raise JobNotFound("no such video")
    return JobId(video_id)


Status = Literal["queued", "in_progress", "completed", "failed"]


class VideoError(BaseModel):
    """Why a video failed."""

    code: str
    message: str


class Cost(BaseModel):
    """The cost of a video: predicted until it is finished, then measured. `usd` needs a configured price."""

    gpu_seconds: float
    is_measured: bool
    usd: float | None

    @classmethod
    def of(cls, job: Job | Ticket, usd_per_gpu_hour: float) -> "Cost":
        measured = job.measured if isinstance(job, Job) else None
        if job.route is Route.MANAGED:
            return cls(gpu_seconds=0.0, is_measured=measured is not None, usd=job.routing.usd)
        gpu_seconds = (measured or job.predicted).gpu_seconds
        usd = usd_of(gpu_seconds, usd_per_gpu_hour)
        return cls(gpu_seconds=round(gpu_seconds, 3), is_measured=measured is not None, usd=usd)


def usd_of(gpu_seconds: float, usd_per_gpu_hour: float) -> float | None:
    """The price of GPU-seconds; None if `api.usd_per_gpu_hour` is not set."""
    return round(gpu_seconds / 3600 * usd_per_gpu_hour, 6) if usd_per_gpu_hour else None


def rounded(seconds: float | None, digits: int = 1) -> float | None:
    """Seconds in a response; None if they are not known or not finite."""
    return round(seconds, digits) if seconds is not None and isfinite(seconds) else None


class StoredImage(BaseModel):
    """The image that a video was made from, stored as long as the video."""

    video_id: str


class Video(BaseModel):
    """A video job. Every key is always present."""

    id: str
    object: Literal["video"] = "video"
    model: str
    status: Status
    progress: int = Field(ge=0, le=100)
    created_at: int
    completed_at: int | None
    expires_at: int | None
    prompt: str | None
    remixed_from_video_id: str | None
    source: SourceKind | None = Field(description="What the video was made from; null if from text only.")
    input_reference: StoredImage | None = Field(
        description="Set if the video was made from an image. Sent in a new request, it uses the image again."
    )
    seconds: str
    size: str
    fps: int
    steps: int | None
    seed: int | None
    guidance: float | None
    lora: str | None = Field(description="The adapters and their scales.")
    pixel_format: str | None = Field(description="As requested; null for the default of the service.")
    negative_prompt: str | None
    error: VideoError | None
    stage: Stage | None
    eta_seconds: float | None
    queue_position: int | None
    cost: Cost
    trace_id: str
    route: Route
    route_reason: RouteReason
    screening: ScreeningAction
    rendered_size: str = Field(description="The size the model renders; the clip is scaled to `size`.")
    quality: str | None = Field(
        description="The level the clip is rendered at: `full` if the requested level would skip nothing. "
        "Null if a provider renders the clip."
    )
    warnings: list[str] = Field(description="Ways in which the clip will differ from the request.")

    @classmethod
    def of(cls, services: Services, job: Job) -> "Video":
        """The video object of a job. May read the forecast: blocks."""
        slot, eta = None, None
        if not job.state.is_final:
            slot, eta = services.forecast.get().predict(job, time.time())
        is_waiting = job.state is JobState.RUNNING and slot is not None  # it has lost its worker
        spec, source = job.spec, job.spec.source
        completed_at = job.finished_at if job.state is JobState.COMPLETED else None
        is_remix = source is not None and source.kind is not SourceKind.IMAGE
        return cls(
            **clip_fields(services, job),
            id=job.id,
            status="queued" if is_waiting else status_of(job),
            progress=_progress_of(job),
            created_at=int(job.created_at),
            completed_at=int(completed_at) if completed_at else None,
            expires_at=int(job.expires_at) if job.expires_at else None,
            prompt=spec.prompt,
            remixed_from_video_id=source.job_id if source is not None and is_remix else None,
            source=source.kind if source is not None else None,
            input_reference=StoredImage(video_id=job.id) if spec.has_image else None,
            rendered_size=str(spec.size),
            fps=spec.fps,
            steps=spec.steps,
            seed=spec.seed,
            guidance=spec.guidance,
            lora=spec.lora,
            pixel_format=spec.pixel_format,
            negative_prompt=spec.negative_prompt,
            error=VideoError(code=job.failure.reason, message=job.failure.message) if job.failure else None,
            stage=job.progress.stage if job.has_started and job.progress and not is_waiting else None,
            eta_seconds=rounded(eta),
            queue_position=slot.position if slot is not None else None,
            trace_id=job.trace_id,
            route_reason=job.routing.reason,
            warnings=warnings_of(services, job),
        )


def clip_fields(services: Services, job: Job | Ticket) -> dict[str, Any]:
    """The fields that a video and an estimate have in common."""
    spec = job.spec
    return {
        "model": spec.model,
        "size": str(spec.clip_size),
        "seconds": f"{_seconds_of(services, spec):g}",
        "quality": spec.quality if job.route is Route.GPU else None,
        "route": job.route,
        "screening": job.screening.action,
        "cost": Cost.of(job, services.settings.usd_per_gpu_hour),
    }


def status_of(job: Job) -> Status:
    """`queued` until a worker has started: a lease alone is not progress."""
    match job.state:
        case JobState.COMPLETED:
            return "completed"
        case JobState.FAILED:
            return "failed"
        case _:
            return "in_progress" if job.has_started else "queued"


def _progress_of(job: Job) -> int:
    """Finished work in percent; 100 means that the clip is available."""
    if job.state is JobState.COMPLETED:
        return 100
    return min(int(100 * job.progress.fraction), 99) if job.progress else 0


def _seconds_of(services: Services, spec: VideoSpec) -> float:
    """The length as requested: 33 frames of a causal model at 16 per second are 2 seconds."""
    card = services.models.get(spec.model)
    return card.limits.frames.seconds(spec.frames, spec.fps) if card is not None else spec.seconds


def warnings_of(services: Services, job: Job) -> list[str]:
    """Ways in which the clip differs from the request."""
    reduced = [_REDUCED.format(job.clip.reduced_to)] if job.clip and job.clip.reduced_to else []
    card = services.models.get(job.spec.model)
    return (card.warnings(job.spec) if card is not None else []) + reduced


class VideoEstimate(BaseModel):
    """The forecast of a request. Seconds are null while no live worker serves the model."""

    object: Literal["video.estimate"] = "video.estimate"
    model: str
    size: str
    seconds: str
    quality: str | None
    route: Route
    screening: ScreeningAction
    cost: Cost
    queue_position: int
    starts_in_seconds: float | None
    ready_in_seconds: float | None
    slo_seconds: float


class VideoPage(BaseModel):
    """Some of a tenant's videos; the next page is `after=last_id`."""

    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedVideo(BaseModel):
    """A deleted video."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


class PromptDigest(BaseModel):
    """The digest of a prompt under the caller's own key: GET /v1/videos finds the videos that have it."""

    object: Literal["prompt.digest"] = "prompt.digest"
    prompt_hmac: str
