"""The shapes on the wire. Requests are read leniently (forms know only strings), answers are complete."""

from difflib import get_close_matches
from typing import Annotated, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from filmgate.api.forms import Body
from filmgate.errors import InvalidField, UnsupportedVerb
from filmgate.jobs import JobId, Route, ScreeningAction, Size, SourceKind, Stage
from filmgate.models.requests import Upload, VideoRequest

_NUMBER = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^\d{1,4}(\.\d{1,3})?$"}]}
_WHOLE = {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d{1,18}$"}]}
Number = Annotated[float, WithJsonSchema(_NUMBER)]
Whole = Annotated[int, WithJsonSchema(_WHOLE)]


class Asked(BaseModel):
    """A request body; a field nobody knows is an error, not a shrug."""

    model_config = ConfigDict(extra="forbid")


class ImageReference(Asked):
    """An image by address; `file_id` is known to the SDK and refused with a reason."""

    image_url: str | None = Field(default=None, max_length=2048)
    file_id: str | None = None


class ClipReference(Asked):
    """A clip made here, by its id."""

    id: str


class CreateVideo(Asked):
    """POST /v1/videos. `input_reference` is an image: a file in a form, or an object with its URL."""

    prompt: str = Field(description="What the clip shows.", min_length=1)
    model: str | None = Field(default=None, description="One of GET /v1/models; the default model if absent.")
    size: str | None = Field(default=None, description="WIDTHxHEIGHT", examples=["256x256"])
    seconds: Number | None = Field(default=None, description="Length of the clip.", examples=["2"])
    fps: Whole | None = Field(default=None, description="Frames a second.")
    steps: Whole | None = Field(
        default=None,
        validation_alias=AliasChoices("steps", "num_inference_steps"),
        description="Denoising steps.",
    )
    seed: Whole | None = Field(default=None, description="The same seed makes the same clip.")
    guidance: Number | None = Field(
        default=None,
        validation_alias=AliasChoices("guidance", "guidance_scale"),
        description="How closely the clip follows the prompt.",
    )
    negative_prompt: str | None = Field(default=None, description="What the clip should not show.")
    input_reference: ImageReference | None = Field(default=None, description="The image it starts from.")

    def to_request(self, files: dict[str, bytes]) -> VideoRequest:
        reference = self.input_reference or ImageReference()
        if reference.file_id is not None:
            raise UnsupportedVerb("files are not kept here; send the image itself", option="input_reference")
        fields = self.model_dump(exclude={"input_reference", "size"})
        size = Size.parse(self.size) if self.size is not None else None
        image = files.get("input_reference")
        upload = Upload("input_reference", image) if image is not None else None
        return VideoRequest(**fields, size=size, image=upload, image_url=reference.image_url)


class RemixVideo(Asked):
    """POST /v1/videos/{id}/remix."""

    prompt: str = Field(description="What the new clip shows.", min_length=1)


class EditVideo(RemixVideo):
    """POST /v1/videos/edits."""

    video: ClipReference | None = Field(default=None, description="The clip to edit.")


class ExtendVideo(EditVideo):
    """POST /v1/videos/extensions."""

    seconds: Number | None = Field(default=None, description="Length of what is added.", examples=["2"])


Form = TypeVar("Form", bound=Asked)


def read_form(form: type[Form], body: Body) -> Form:
    """The body as this form. Raises InvalidField naming the first field that is wrong."""
    fields = {key: value for key, value in body.fields.items() if key not in body.files}
    try:
        return form.model_validate(fields)
    except ValidationError as exc:
        raise _explain(form, exc.errors()[0]) from exc


def clip_source(verb: SourceKind, form: EditVideo, body: Body) -> JobId:
    """The id of the clip to start from. Raises UnsupportedVerb for an uploaded one, InvalidField for none."""
    if "video" in body.files:
        raise UnsupportedVerb(f"to {verb} an uploaded video is not supported; name one made here by its id")
    if form.video is None:
        raise InvalidField("video is missing; name a clip made here by its id", option="video")
    return JobId(form.video.id)


def _explain(form: type[Asked], error: ErrorDetails) -> InvalidField:
    name = ".".join(str(part) for part in error["loc"])[:100]
    if error["type"] == "extra_forbidden":
        near = get_close_matches(name, form.model_fields, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return InvalidField(f"{name} is not a field of this request{hint}", option=name)
    if error["type"] == "missing":
        return InvalidField(f"{name} is missing", option=name)
    return InvalidField(f"{name}: {error['msg']}", option=name)


Status = Literal["queued", "in_progress", "completed", "failed"]


class VideoError(BaseModel):
    """Why a video failed."""

    code: str
    message: str


class Cost(BaseModel):
    """What a video takes: predicted until it is finished, measured after. `usd` needs a configured price."""

    gpu_seconds: float
    is_measured: bool
    usd: float | None


class Video(BaseModel):
    """A video job. Every key is always there."""

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
    seconds: str
    size: str
    error: VideoError | None
    stage: Stage | None
    eta_seconds: float | None
    queue_position: int | None
    cost: Cost
    trace_id: str
    route: Route
    screening: ScreeningAction


class VideoPage(BaseModel):
    """Some of a tenant's videos; the next page is `after=last_id`."""

    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedVideo(BaseModel):
    """A video that is gone, with everything that was stored for it."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


class StreamLink(BaseModel):
    """Where the stream of one video plays without a key, until `expires_at`."""

    object: Literal["video.stream_link"] = "video.stream_link"
    id: str
    url: str
    expires_at: int


class ProblemDetail(BaseModel):
    """What went wrong; `param` names the field, `code` is for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ProblemBody(BaseModel):
    """The one form of every error."""

    error: ProblemDetail
