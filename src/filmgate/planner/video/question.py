"""A question about clips."""

from dataclasses import dataclass

from filmgate.catalog.gpus import Gpu
from filmgate.catalog.video_models import VideoModel
from filmgate.models.quality import FULL
from filmgate.planner.capabilities import FILMGATE, Capabilities, pipeline_class
from filmgate.planner.fleet.money import INTERRUPTIONS_PER_DAY, Terms
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import Traffic, TrafficShape, recorded_traffic, traffic_of
from filmgate.planner.memory import SAFETY_FACTOR
from filmgate.planner.video.clip import ClipShape
from filmgate.planner.video.rates import Software


@dataclass(frozen=True, slots=True)
class VideoQuestion:
    """What to plan for. Without `clips_per_day` the cost is that of a machine that is always busy.

    `mode` is None for what a worker does by default. `arrivals` are recorded arrival times in seconds; they
    replace `clips_per_day` and `shape`. The whole memory budget times `budget_margin` must fit a GPU.
    """

    model: VideoModel
    clip: ClipShape
    region: str = "us-east-1"
    clips_per_day: float | None = None
    slo_seconds: float | None = None
    shape: TrafficShape = TrafficShape.STEADY
    precision: str = "bf16"
    mode: str | None = None
    gpu: Gpu | None = None
    instances: tuple[str, ...] = ()
    residency: str | None = None
    commit_discount: float | None = None
    commit_years: int = 1
    interruptible_share: float = 0.0
    interruptions_per_day: float = INTERRUPTIONS_PER_DAY
    tenants: int = 1
    tenancy: Tenancy = Tenancy.SHARED
    adapters: int = 1
    spare_machines: int = 1
    safety_factor: float = SAFETY_FACTOR
    budget_margin: float = 1.0
    arrivals: tuple[float, ...] = ()
    runtime: Capabilities = FILMGATE

    def software(self, offload: str = "none") -> Software:
        """The software of a worker. Offloaded layers are never compiled."""
        is_compiled = self.runtime.is_compiled(self.model)
        mode = self.mode or ("compiled" if is_compiled else "eager")
        mode = "eager" if offload == "layers" else mode
        # Weights in int8 are restored before each product: they save memory, not time.
        arithmetic = "bf16" if self.precision == "int8" else self.precision
        return Software(mode=mode, precision=arithmetic, has_fast_decoder=True)

    @property
    def traffic(self) -> Traffic | None:
        if self.arrivals:
            return recorded_traffic(self.arrivals)
        return traffic_of(self.clips_per_day, self.shape) if self.clips_per_day is not None else None

    @property
    def terms(self) -> Terms:
        return Terms(
            self.commit_discount, self.interruptible_share, self.commit_years, self.interruptions_per_day
        )

    def not_with_filmgate(self) -> list[str]:
        """What the question asks for and the runtime does not do."""
        found = []
        if not self.runtime.can_load(self.model):
            found.append(f"it has no family for {pipeline_class(self.model)}, which {self.model.id} needs")
        if self.precision not in self.runtime.weight_precisions:
            found.append(f"it does not compute in {self.precision}; use --precision bf16 or int8")
        if self.clip.quality != FULL and not self.runtime.has_levels(self.model):
            found.append(f"it does not render {self.model.id} at quality {self.clip.quality}; use full")
        if self.adapters > 1 and not self.runtime.can_serve_adapters:
            found.append("it does not serve adapters; store each one as a merged model")
        return found
