"""The filter of GET /v1/videos."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Query

from filmgate.errors import ModelLoading, ModelNotFound
from filmgate.jobs import JobState
from filmgate.models.cards import ModelRegistry
from filmgate.scheduling.records import JobFilter

ListedStatus = Literal["open", "completed", "failed"]
_STATES: Mapping[str, tuple[JobState, ...]] = {
    "open": (JobState.QUEUED, JobState.RUNNING),
    "completed": (JobState.COMPLETED,),
    "failed": (JobState.FAILED,),
}


@dataclass(frozen=True, slots=True)
class VideoFilter:
    """The query parameters of a filter. The text of prompts is not among them: URLs are logged.

    POST /v1/videos/prompt-digest computes the digest of a prompt.
    """

    model: Annotated[str | None, Query(max_length=200, description="Only videos of this model.")] = None
    status: Annotated[
        ListedStatus | None,
        Query(description="`completed` or `failed`; `open` selects queued and running videos."),
    ] = None
    created_from: Annotated[
        float | None, Query(ge=0, le=1e11, description="Only videos created at this Unix time or later.")
    ] = None
    created_before: Annotated[
        float | None, Query(ge=0, le=1e11, description="Only videos created before this Unix time.")
    ] = None
    prompt_hmac: Annotated[
        str | None,
        Query(pattern="^[0-9a-f]{64}$", description="Only videos with this prompt digest."),
    ] = None

    def to_filter(self, models: ModelRegistry) -> JobFilter:
        """The filter of jobs; the model may be any of its names."""
        return JobFilter(
            model=self._model(models),
            states=_STATES[self.status] if self.status else None,
            created_from=self.created_from,
            created_before=self.created_before,
            prompt_hmac=self.prompt_hmac,
        )

    def _model(self, models: ModelRegistry) -> str | None:
        try:
            return models.find(self.model).name if self.model else None
        except (ModelLoading, ModelNotFound):
            return self.model  # a model that no worker serves now may have clips


NO_FILTER = VideoFilter()
