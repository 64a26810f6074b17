"""What the planner predicts for the requests of a load test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.video_models import VideoModel
from filmgate.errors import FilmgateError, UsageError
from filmgate.jobs import Size
from filmgate.load_test.mix import ClipKind, Plan
from filmgate.load_test.report import Measured
from filmgate.load_test.requests import Sent
from filmgate.pipeline.bench.alone_result import Alone
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.clip_time import clip_time
from filmgate.planner.video.question import VideoQuestion

_MODES = {"on": "compiled", "off": "eager"}
ELSEWHERE = "the GPU of a server elsewhere is not known; run this command on its machine, without --url"
NOT_NAMED = "name the model of every --clip in the planner's catalog with catalog=NAME"


@dataclass(frozen=True, slots=True)
class Planner:
    """The facts for a prediction, and the models that the kinds of clips name."""

    catalog: Catalog
    calibration: Calibration
    models: Mapping[ClipKind, VideoModel]

    @classmethod
    def open(cls, kinds: Sequence[ClipKind], catalog: Catalog, calibration: Calibration) -> "Planner":
        """Raises UsageError for a model that the catalog does not have."""
        try:
            models = {kind: catalog.video_model(kind.catalog) for kind in kinds if kind.catalog}
        except UsageError as exc:
            raise UsageError(str(exc), option="--clip") from exc
        return cls(catalog, calibration, models)

    def predict(
        self, alone: Mapping[ClipKind, Alone], compilation: str = "auto"
    ) -> dict[ClipKind, float] | str:
        """The seconds of each kind of clip on the GPU, or the reason why there is no prediction.

        `compilation` is the setting `pipeline.compile`.
        """
        if not alone:
            return ELSEWHERE
        if alone.keys() - self.models.keys():
            return NOT_NAMED
        device = next(iter(alone.values())).device
        try:
            gpu = self.catalog.gpu(device)
        except UsageError:
            return f"the planner's catalog has no GPU {device}"
        try:
            return {kind: self._seconds(kind, gpu, shape, compilation) for kind, shape in alone.items()}
        except FilmgateError as exc:  # a clip that the catalog's model does not render
            return str(exc)

    def _seconds(self, kind: ClipKind, gpu: Gpu, shape: Alone, compilation: str) -> float:
        model, size = self.models[kind], Size.parse(shape.size)
        clip = clip_for(model, size=size, frames=shape.frames, fps=shape.fps, steps=shape.steps)
        forwards = 2 if shape.guidance > 1 else 1
        clip = replace(clip, forwards_per_step=forwards, quality=shape.quality)
        software = VideoQuestion(model, clip, mode=_MODES.get(compilation)).software()
        return clip_time(model, clip, gpu, 1, software, self.calibration.constants).seconds


def simulate(plan: Plan, seconds: Mapping[ClipKind, float]) -> Measured:
    """The requests of the plan on one GPU that renders them in the order of their arrival."""
    sent, free_at = [], 0.0
    for number, (kind, at) in enumerate(zip(plan.kinds, plan.times, strict=True)):
        free_at = max(free_at, at) + seconds[kind]
        sent.append(Sent(kind, str(number), sent_at=at, linked_at=free_at))
    return Measured(plan, sent, {}, None)
