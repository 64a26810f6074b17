"""Request and response bodies. Numbers in requests may be strings, because forms have only strings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Annotated, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from filmgate.api.forms import Body
from filmgate.api.spool import SpooledUpload
from filmgate.errors import InvalidField, JobNotFound, UnsupportedVerb
from filmgate.jobs import JOB_ID_PATTERN, JobId, Route, RouteReason, ScreeningAction, Size, SourceKind, Stage
from filmgate.models.requests import VideoRequest
from filmgate.settings.wording import in_plain_words

_NUMBER = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\d{1,4}(\.\d{1,3})?$"}]}
_WHOLE = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d{1,18}$"}]}
Number = Annotated[float, WithJsonSchema(_NUMBER)]
Whole = Annotated[int, WithJsonSchema(_WHOLE)]


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

    def to_request(self, files: Mapping[str, SpooledUpload]) -> VideoRequest:
        reference = self.input_reference or ImageReference()
        if reference.file_id is not None:
            raise UnsupportedVerb(
                "file ids are not supported; send the image itself", option="input_reference"
            )
        if reference.image_url is not None and reference.video_id is not None:
            raise InvalidField("send image_url or video_id, not both", option="input_reference")
        fields = self.model_dump(exclude={"input_reference", "size"})
        size = Size.parse(self.size) if self.size is not None else None
        image = files.get("input_reference")
        upload = SpooledImage("input_reference", image) if image is not None else None
        image_from = to_job_id(reference.video_id) if reference.video_id is not None else None
        return VideoRequest(
            **fields, size=size, image=upload, image_url=reference.image_url, image_from=image_from
        )


@dataclass(frozen=True, slots=True)
class SpooledImage:
    """A reference image that waits on disk until it is decoded."""

    option: str
    file: SpooledUpload = field(repr=False)

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes

    @property
    def data(self) -> bytes:
        return self.file.read()


class RemixVideo(Form):
    """POST /v1/videos/{id}/remix."""

    prompt: str = Field(description="What the new clip shows.", min_length=1)
    quality: str | None = Field(default=None, description="The quality level; absent: that of the source.")


class EditVideo(RemixVideo):
    """POST /v1/videos/edits."""

    video: ClipReference | None = Field(default=None, description="The clip to edit.")


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


def to_job_id(video_id: str) -> JobId:
    """The id as a JobId. Malformed, unknown and foreign ids raise the same JobNotFound."""
    if not JOB_ID_PATTERN.fullmatch(video_id):
        raise JobNotFound("no such video")
    return JobId(video_id)


def find_clip(verb: SourceKind, form: EditVideo, body: Body) -> JobId:
    """The id of the clip to start from. Raises UnsupportedVerb for an upload, InvalidField for none."""
    if "video" in body.files:
        raise UnsupportedVerb(
            f"an uploaded video cannot be used to {verb}; send the id of a video created here"
        )
    if form.video is None:
        raise InvalidField("video is missing; send the id of a video created here", option="video")
    return JobId(form.video.id)


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


class StreamLink(BaseModel):
    """A link to a stream that needs no API key, until `expires_at`."""

    object: Literal["video.stream_link"] = "video.stream_link"
    id: str
    url: str
    expires_at: int


class ProblemDetail(BaseModel):
    """An error: `param` names the field, `code` is for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ProblemBody(BaseModel):
    """The body of every error."""

    error: ProblemDetail
