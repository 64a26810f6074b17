"""The fleet and the cost in an answer."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from filmgate.catalog.gpus import Gpu
from filmgate.planner.fleet.isolation import Isolation
from filmgate.planner.fleet.money import Purchase, PurchaseOption
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.fleet.starts import ColdStart
from filmgate.planner.fleet.tenancy import Tenancy


def tight(fleet: Fleet, work: str) -> str:
    """A warning about a fleet that misses its target in some further simulations; empty for others."""
    if not fleet.late_runs:
        return ""
    lost = "the spare machines lost and " if fleet.spare_instances else ""
    return (
        f" Tight: with {lost}{work} at the upper end, {fleet.late_runs} of {fleet.confirming_runs} further "
        "simulations miss the limit; --spare-machines adds margin."
    )


@dataclass(frozen=True, slots=True)
class ClipArrivals:
    """The arrivals that a video fleet is sized for."""

    shape: str
    per_day: float
    peak_per_hour: float


ENCODE_ON = {0: "CPU: the GPU has no encoder", None: "CPU; it is not known whether the GPU has an encoder"}
"""Where videos are encoded, by the NVENC engines of a GPU; on either with at least one."""


@dataclass(frozen=True, slots=True)
class NodeSoftware:
    """What a node must have installed, and the GPU name that Karpenter uses."""

    min_driver: str | None
    min_cuda: str | None
    needs_open_modules: bool | None
    karpenter_gpu_name: str | None
    nvenc: int | None
    encode_on: str

    @classmethod
    def for_gpu(cls, gpu: Gpu) -> "NodeSoftware":
        return cls(
            min_driver=gpu.min_driver,
            min_cuda=gpu.min_cuda,
            needs_open_modules=gpu.needs_open_modules,
            karpenter_gpu_name=gpu.karpenter_name,
            nvenc=gpu.nvenc,
            encode_on=ENCODE_ON.get(gpu.nvenc, "GPU or CPU"),
        )


@dataclass(frozen=True, slots=True)
class EncoderOnNvme:
    """Reading the text encoder from NVMe for each prompt instead of keeping it on the GPU."""

    frees_bytes: float
    added_seconds: float
    is_worth_it: bool
    reason: str


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """What the loss of one machine does, until a new one has started.

    `interrupted` clips or answers start again. `latency_p95` is expected meanwhile.
    """

    share_lost: float
    interrupted: int
    latency_p95: float | None
    recovery_seconds: float
    zones: int

    @classmethod
    def of(
        cls, fleet: Fleet, latency_p95: float | None, recovery_seconds: float, per_replica: int = 1
    ) -> "BlastRadius":
        """The loss of a machine that does `per_replica` clips or answers at once on each replica."""
        lost, zones = fleet.replicas_per_instance, min(2, fleet.instances)
        return cls(lost / fleet.replicas, lost * per_replica, latency_p95, recovery_seconds, zones)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to run that is not the decision, and what it would cost."""

    name: str
    what: str
    seconds: float | None
    usd_per_month: float | None
    note: str


@dataclass(frozen=True, slots=True)
class ChartWorkers:
    """How the chart scales one pool of workers: all of them, or those of one tenant.

    `min_replicas` and `max_replicas` are on demand. Of `spot_replicas`, `min_spot_replicas` always run.
    `replicas_while_active` is the minimum while any worker runs, of workers that scale to zero. Between the
    hours of the schedule, `scheduled_replicas` and all spot replicas run. Without one, the hours are equal.
    """

    min_replicas: int
    max_replicas: int
    min_spot_replicas: int
    spot_replicas: int
    replicas_while_active: int
    scheduled_replicas: int
    start_hour: int
    end_hour: int
    backlog_seconds_per_worker: int
    drain_seconds: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """What to deploy, for `filmgate deploy` and for people. Values are those of settings and of the chart.

    `chart` is for one of `pools` pools of workers.
    """

    instance_type: str
    machines: int
    machines_in_quiet_hours: int
    spare_machines: int
    workers_per_machine: int
    zones: int
    model: str
    region: str
    offload: str
    compile: str
    dtype: str
    weights: str
    default_quality: str
    is_tiled: bool
    tenants: int
    tenancy: str
    slo_seconds: float | None
    is_scaled_to_zero: bool
    chart: ChartWorkers

    @property
    def pools(self) -> int:
        """Groups of workers: one for all tenants, or one for each."""
        return 1 if self.tenancy == Tenancy.SHARED else self.tenants


@dataclass(frozen=True, slots=True)
class VideoFleetAnswer:
    """The fleet for clips. `size` and `arrivals` are None for a question without a volume."""

    pattern: str
    reasons: tuple[str, ...]
    machine: str
    size: Fleet | None
    arrivals: ClipArrivals | None
    cold_start: tuple[ColdStart, ...]
    isolation: tuple[Isolation, ...]
    tenants: int
    software: NodeSoftware
    text_encoder_on_nvme: EncoderOnNvme
    blast_radius: BlastRadius | None
    deployment: Deployment
    not_with_filmgate: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class RequestArrivals:
    """The requests that a language-model fleet is sized for.

    The latencies are those at the upper end of the interval, with the spare machines lost.
    """

    requests_per_day: float
    traffic: str
    peak_requests_per_second: float
    sequences_per_replica: int
    worst_first_token_ms_p95: float
    worst_between_tokens_ms: float


@dataclass(frozen=True, slots=True)
class CacheOnNvme:
    """Reading a paused sequence's KV cache from NVMe, compared with computing it again."""

    bytes: float
    read_seconds: float
    recompute_seconds: float
    is_worth_it: bool


@dataclass(frozen=True, slots=True)
class LlmFleetAnswer:
    """The fleet for requests. `size`, `arrivals` and `blast_radius` are None for a single replica.

    The latencies of `size` are those of the first token.
    """

    pattern: str
    reasons: tuple[str, ...]
    machine: str
    gpus_per_replica: int
    replicas_per_instance: int
    sequences_per_instance: int
    size: Fleet | None
    arrivals: RequestArrivals | None
    cold_start: tuple[ColdStart, ...]
    isolation: tuple[Isolation, ...]
    cache_on_nvme: CacheOnNvme
    software: NodeSoftware
    blast_radius: BlastRadius | None
    engine_arguments: str


@dataclass(frozen=True, slots=True)
class UtilisationAnswer:
    """How busy the current machine is, and whether its size is right. None: not recorded.

    GPU utilisation only says that some kernel ran. SM and DRAM activity are the load where they are recorded.
    """

    samples: int
    gpu_p50: float
    gpu_p95: float
    memory_p99_bytes: float
    memory_share: float
    sm_p95: float | None
    dram_p95: float | None
    judgement: str

    @property
    def activity(self) -> float:
        """The busier of arithmetic and memory."""
        measured = [value for value in (self.sm_p95, self.dram_p95) if value is not None]
        return max(measured, default=self.gpu_p95)


FleetAnswer = VideoFleetAnswer | LlmFleetAnswer | UtilisationAnswer


def fleet_as_json(fleet: FleetAnswer) -> dict[str, object]:
    """The fields, with those of the size, and of the requests of a language model, at the same level."""
    fields = asdict(fleet)
    for nested in ("size", "arrivals") if isinstance(fleet, LlmFleetAnswer) else ("size",):
        fields |= fields.pop(nested, None) or {}
    return fields


@dataclass(frozen=True, slots=True)
class ClipQuote:
    """A managed API's price for the same clip.

    `is_available`: the API is active, renders the height, and its typical latency is within the SLO.
    """

    id: str
    name: str
    state: str
    is_available: bool
    usd_per_clip: float
    break_even_clips_per_day: float | None
    typical_seconds: float | None
    note: str


def cheapest(quotes: Iterable["ClipQuote | TokenQuote"]) -> ClipQuote | None:
    """The managed API that renders the clip for the least."""
    available = (quote for quote in quotes if isinstance(quote, ClipQuote) and quote.is_available)
    return min(available, key=lambda quote: quote.usd_per_clip, default=None)


@dataclass(frozen=True, slots=True)
class TokenQuote:
    """A managed API's price for a million answer tokens together with their prompts.

    `is_available`: it is offered in the jurisdiction of the question.
    """

    id: str
    name: str
    usd_per_million_output_with_prompts: float
    break_even_tokens_per_day: float | None
    is_same_model: bool
    is_available: bool
    note: str


@dataclass(frozen=True, slots=True)
class CostLever:
    """A change and the share of time or cost that it saves."""

    name: str
    saving: float
    note: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class VolumeCost:
    """The cost at a multiple of the volume."""

    factor: int
    clips_per_day: float
    usd_per_day: float | None
    usd_per_clip: float | None


@dataclass(frozen=True, slots=True)
class RegionPrice:
    """The price of the machine in one region, and the same fleet there on demand.

    `is_allowed`: the residency rule of the question allows the region; true without a rule.
    """

    region: str
    jurisdiction: str | None
    usd_per_hour: float | None
    spot_min: float | None
    spot_max: float | None
    usd_per_month: float | None = None
    is_allowed: bool = True


@dataclass(frozen=True, slots=True)
class CostAnswer:
    """The cost of the best machine, how to buy it, and the alternatives. None: does not apply."""

    machine: str
    usd_per_hour: float | None
    managed: tuple[ClipQuote | TokenQuote, ...]
    levers: tuple[CostLever, ...]
    regions: tuple[RegionPrice, ...]
    usd_per_clip: float | None = None
    usd_per_second_of_video: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_day: float | None = None
    usd_per_month: float | None = None
    idle_usd_per_day: float | None = None
    warm_usd_per_day: float | None = None
    by_volume: tuple[VolumeCost, ...] = ()
    purchase: tuple[Purchase, ...] = ()
    purchase_options: tuple[PurchaseOption, ...] = ()
    warnings: tuple[str, ...] = ()
