"""Request and response bodies. Numbers in requests may be strings, because forms have only strings."""

import time
from difflib import get_close_matches
from typing import Annotated, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from filmgate.api.forms import Body
from filmgate.api.services import Services
from filmgate.errors import InvalidField, JobNotFound, ModelNotFound, UnsupportedVerb
from filmgate.jobs import (
    JOB_ID_PATTERN,
    Job,
    JobId,
    JobState,
    Route,
    RouteReason,
    ScreeningAction,
    Size,
    SourceKind,
    Stage,
    Ticket,
)
from filmgate.models.requests import VideoRequest
from filmgate.settings.wording import in_plain_words

_NUMBER = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\d{1,4}(\.\d{1,3})?$"}]}
_WHOLE = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d{1,18}$"}]}
Number = Annotated[float, WithJsonSchema(_NUMBER)]
Whole = Annotated[int, WithJsonSchema(_WHOLE)]
_REDUCED = "GPU memory ran out, so the clip was decoded in {}, which differs slightly from whole frames"


class Form(BaseModel):
    """A request body. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class ImageReference(Form):
    """An image by URL, or that of an earlier video; `file_id` exists in the SDK and is not supported."""

    image_url: str | None = Field(default=None, max_length=2048)
    video_id: str | None = Field(default=None, description="A video created here from an image: the same.")
    file_id: str | None = None


class ClipReference(Form):
    """A video created here, by its id."""

    id: str


class CreateVideo(Form):
    """POST /v1/videos. `input_reference` is an image: a file in a form, or an object that names one."""

    prompt: str = Field(description="What the clip shows.", min_length=1)
    model: str | None = Field(default=None, description="One of GET /v1/models; the default model if absent.")
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
        description="One of the model's `quality_levels` in GET /v1/models; absent: "
        "`admission.default_quality`.",
    )
    pixel_format: str | None = Field(
        default=None,
        description="Chroma rows and bits of the file: `yuv420p`, `yuv420p10`, `yuv422p` or `yuv422p10`. "
        "Browsers play `yuv420p` only. Absent: `pipeline.pixel_format`.",
    )
    negative_prompt: str | None = Field(default=None, description="What the clip should not show.")
    input_reference: ImageReference | None = Field(default=None, description="The first frame.")


class RemixVideo(Form):
    """POST /v1/videos/{id}/remix."""

    prompt: str = Field(description="What the new clip shows.", min_length=1)
    quality: str | None = Field(default=None, description="The quality level; absent: that of the source.")


class EditVideo(RemixVideo):
    """POST /v1/videos/edits."""

    video: ClipReference | None = Field(default=None, description="The clip to edit.")
    seed: Whole | None = Field(default=None, description="The seed; absent: that of the source.")


class ExtendVideo(EditVideo):
    """POST /v1/videos/extensions."""

    seconds: Number | None = Field(default=None, description="Length of the extension.", examples=["2"])


class DigestPrompt(Form):
    """POST /v1/videos/prompt-digest."""

    prompt: str = Field(description="A prompt, exactly as it was sent.", min_length=1)


F = TypeVar("F", bound=Form)


def parse_form(form: type[F], body: Body) -> F:
    """The body as this form. Raises InvalidField that names the first invalid field."""
    fields = {key: value for key, value in body.fields.items() if key not in body.files}
    try:
        return form.model_validate(fields)
    except ValidationError as exc:
        raise _explain(form, exc.errors()[0]) from exc


def to_request(body: Body) -> VideoRequest:
    """The request in the body of POST /v1/videos. Raises UsageError subclasses."""
    form = parse_form(CreateVideo, body)
    reference = form.input_reference or ImageReference()
    if reference.file_id is not None:
        raise UnsupportedVerb("file ids are not supported; send the image itself", option="input_reference")
    if reference.image_url is not None and reference.video_id is not None:
        raise InvalidField("send image_url or video_id, not both", option="input_reference")
    return VideoRequest(
        **form.model_dump(exclude={"input_reference", "size"}),
        size=Size.parse(form.size) if form.size is not None else None,
        image=body.files.get("input_reference"),
        image_url=reference.image_url,
        image_from=to_job_id(reference.video_id) if reference.video_id is not None else None,
    )


def to_job_id(video_id: str) -> JobId:
    """The id as a JobId. Malformed, unknown and foreign ids raise the same JobNotFound."""
    if not JOB_ID_PATTERN.fullmatch(video_id):
        raise JobNotFound("no such video")
    return JobId(video_id)


def _explain(form: type[Form], error: ErrorDetails) -> InvalidField:
    name = ".".join(str(part) for part in error["loc"])[:100]
    if error["type"] == "extra_forbidden":
        near = get_close_matches(name, form.model_fields, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return InvalidField(f"{name} is not a field of this request{hint}", option=name)
    if error["type"] == "missing":
        return InvalidField(f"{name} is missing", option=name)
    return InvalidField(f"{name}: {in_plain_words(error['msg'])}", option=name)


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
    source: SourceKind | None = Field(description="What the video was made from; null: from text alone.")
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
    pixel_format: str | None = Field(description="As requested; null: that of the service.")
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
        description="The level the clip is rendered at: `full` where the requested one would skip nothing. "
        "Null if a provider renders the clip."
    )
    warnings: list[str] = Field(description="What the clip will not show as the request expects.")

    @classmethod
    def of(cls, services: Services, job: Job) -> "Video":
        """The video object of a job. May read the forecast: blocks."""
        slot = services.forecast.slot(job)
        is_waiting = job.state is JobState.RUNNING and slot is not None  # it has lost its worker
        eta = services.forecast.eta_seconds(job, time.time())
        spec, source = job.spec, job.spec.source
        completed_at = job.finished_at if job.state is JobState.COMPLETED else None
        is_remix = source is not None and source.kind is not SourceKind.IMAGE
        return cls(
            id=job.id,
            model=spec.model,
            status="queued" if is_waiting else status_of(job),
            progress=_progress_of(job),
            created_at=int(job.created_at),
            completed_at=int(completed_at) if completed_at else None,
            expires_at=int(job.expires_at) if job.expires_at else None,
            prompt=spec.prompt,
            remixed_from_video_id=source.job_id if source is not None and is_remix else None,
            source=source.kind if source is not None else None,
            input_reference=StoredImage(video_id=job.id) if spec.has_image else None,
            seconds=f"{_seconds_of(services, job):g}",
            size=str(spec.clip_size),
            rendered_size=str(spec.size),
            quality=spec.quality if job.route is Route.GPU else None,
            fps=spec.fps,
            steps=spec.steps,
            seed=spec.seed,
            guidance=spec.guidance,
            lora=spec.lora,
            pixel_format=spec.pixel_format,
            negative_prompt=spec.negative_prompt,
            error=VideoError(code=job.failure.reason, message=job.failure.message) if job.failure else None,
            stage=job.progress.stage if job.has_started and job.progress and not is_waiting else None,
            eta_seconds=round(eta, 1) if eta is not None else None,
            queue_position=slot.position if slot is not None else None,
            cost=Cost.of(job, services.settings.usd_per_gpu_hour),
            trace_id=job.trace_id,
            route=job.route,
            route_reason=job.routing.reason,
            screening=job.screening.action,
            warnings=warnings_of(services, job),
        )


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


def _seconds_of(services: Services, job: Job) -> float:
    """The length as requested: 33 frames of a causal model at 16 per second are 2 seconds."""
    try:
        frames = services.models.find(job.spec.model).limits.frames
    except ModelNotFound:
        return job.spec.seconds
    return frames.seconds(job.spec.frames, job.spec.fps)


def warnings_of(services: Services, job: Job) -> list[str]:
    """What the clip does not show as the request expects."""
    reduced = [_REDUCED.format(job.clip.reduced_to)] if job.clip and job.clip.reduced_to else []
    try:
        return services.models.find(job.spec.model).warnings(job.spec) + reduced
    except ModelNotFound:
        return reduced


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
