"""A question about clips."""

from dataclasses import dataclass

from filmgate.catalog.gpus import Gpu
from filmgate.catalog.video_models import VideoModel
from filmgate.models.quality import FULL
from filmgate.planner.capabilities import FILMGATE, Capabilities, family_of, pipeline_class
from filmgate.planner.fleet.money import DEFAULT_TERMS, Terms
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import Traffic
from filmgate.planner.memory import SAFETY_FACTOR
from filmgate.planner.video.clip import ClipShape
from filmgate.planner.video.rates import Software


@dataclass(frozen=True, slots=True)
class VideoQuestion:
    """What to plan for. Without `traffic` the cost is that of a machine that is always busy.

    `mode` is None for what a worker does by default. `residency` is the jurisdiction that data must stay in.
    The whole memory budget times `budget_margin` must fit a GPU.
    """

    model: VideoModel
    clip: ClipShape
    region: str = "us-east-1"
    traffic: Traffic | None = None
    slo_seconds: float | None = None
    precision: str = "bf16"
    mode: str | None = None
    gpu: Gpu | None = None
    instances: tuple[str, ...] = ()
    residency: str | None = None
    terms: Terms = DEFAULT_TERMS
    tenants: int = 1
    tenancy: Tenancy = Tenancy.SHARED
    spare_machines: int = 1
    safety_factor: float = SAFETY_FACTOR
    budget_margin: float = 1.0
    has_flash: bool = False
    adapters: int = 1
    runtime: Capabilities = FILMGATE

    def software(self, offload: str = "none") -> Software:
        """The software of a worker.

        Offloaded layers are never compiled. Fused kernels need all weights on the GPU, and in 16 bits.
        """
        family = family_of(self.model)
        default = "compiled" if family and family.is_compilation_proven else "eager"
        mode = "eager" if offload == "layers" else self.mode or default
        # Weights in int8 are restored before each product: they save memory, not time.
        arithmetic = "bf16" if self.precision == "int8" else self.precision
        is_fused = self.mode is None and offload == "none" and self.precision != "int8"
        fused = family.fused if family and is_fused else None
        return Software(
            mode=mode, precision=arithmetic, has_fast_decoder=True, fused=fused, has_flash=self.has_flash
        )

    def unsupported(self) -> list[str]:
        """What the question asks for and the runtime does not do."""
        found, family = [], family_of(self.model)
        if family is None and self.model.pipeline is not None:
            found.append(f"it cannot load {pipeline_class(self.model)}")
        if self.precision not in self.runtime.weight_precisions:
            found.append(
                f"it stores weights in {self.precision} (pipeline.weights), but computes in bf16; "
                "--precision int8 needs the same memory and is closer to bf16"
            )
        if self.precision == "int8" and not self.model.denoiser.layers:
            found.append(f"it does not store weights of {self.model.id} in int8; use --precision bf16")
        if self.clip.quality != FULL and not (family and family.has_quality_levels):
            found.append(f"it does not render {self.model.id} at quality {self.clip.quality}; use full")
        return found
