"""The variants of bench_denoise: one forward pass of the denoiser, unchanged and with possible speed-ups."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.denoisers import (
    Inputs,
    build_denoiser,
    build_text_encoder,
    check_shape,
    draw_inputs,
    forward_flops,
    recipe_of,
)
from filmgate.errors import DeviceError, UsageError
from filmgate.pipeline.denoise.acceleration import CompiledBlocks
from filmgate.pipeline.denoise.attention import (
    Attention,
    choose_attention,
    flash_at_once,
    flash_attention,
    torch_attention,
)
from filmgate.pipeline.loading.memory import choose_device, choose_dtype
from filmgate.pipeline.text import TextCache
from filmgate.pipeline.trials import set_cache_folder
from filmgate.settings import PipelineSettings

Size = tuple[int, int]
T = TypeVar("T")

EAGER, COMPILED, CUDNN, FLASH = "eager", "compiled", "cudnn", "flash"
COMPILED_CUDNN, WHOLE = "compiled_cudnn", "whole"
# With the attention that wins the trial, with torch's own, and with flash-attn-4 in tiles of one size.
FUSED, FUSED_TORCH, FUSED_AT_ONCE = "fused", "fused_torch", "fused_at_once"
TWO_FORWARDS, ONE_BATCH = "two_forwards", "one_batch"
FLOAT32, TEXT, TEXT_CACHED = "float32", "text", "text_cached"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a forward pass."""

    is_compiled: bool = False
    attention: SDPBackend | None = None  # None: torch chooses
    passes: int = 1
    is_doubled: bool = False
    needs_cuda: bool = False


FORWARDS = {
    EAGER: Variant(),
    COMPILED: Variant(is_compiled=True),
    CUDNN: Variant(attention=SDPBackend.CUDNN_ATTENTION, needs_cuda=True),
    FLASH: Variant(attention=SDPBackend.FLASH_ATTENTION, needs_cuda=True),
    COMPILED_CUDNN: Variant(is_compiled=True, attention=SDPBackend.CUDNN_ATTENTION, needs_cuda=True),
    TWO_FORWARDS: Variant(passes=2),
    ONE_BATCH: Variant(is_doubled=True),
}
VARIANTS = (*FORWARDS, FUSED, FUSED_TORCH, FUSED_AT_ONCE, WHOLE, FLOAT32, TEXT, TEXT_CACHED)
AT_EVERY_SIZE = (EAGER, COMPILED, FUSED)
# Most important first, because a run may be interrupted.
AT_FIRST_SIZE = (
    FUSED_TORCH,
    FUSED_AT_ONCE,
    CUDNN,
    TWO_FORWARDS,
    ONE_BATCH,
    TEXT,
    TEXT_CACHED,
    FLOAT32,
    COMPILED_CUDNN,
    FLASH,
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant at one size: median seconds, and the relative difference of its output to others."""

    seconds: float
    all_seconds: tuple[float, ...]
    first_seconds: float  # includes warm-up or compilation
    peak_device_bytes: int | None
    queued_seconds: float | None = None  # a pass of several that are queued without a pause
    relative_differences: dict[str, float] = field(default_factory=dict)
    attention: tuple[str, ...] = ()
    compiler_cache_hits: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What to measure: the denoiser, the length of the clip, timed rounds, and the torch.compile backend."""

    model: str
    frames: int = 81
    rounds: int = 3
    backend: str = "inductor"


def plan(sizes: Sequence[Size], names: AbstractSet[str]) -> list[tuple[str, Size]]:
    """The measurements in order, most important first. Without names: all except the whole-model compile."""
    if unknown := names - set(VARIANTS):
        raise UsageError(
            f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(VARIANTS)}", option="--variants"
        )
    everywhere = [(name, size) for size in sizes for name in AT_EVERY_SIZE]
    first = [(name, sizes[0]) for name in (*AT_FIRST_SIZE, WHOLE)]
    chosen = names or {*AT_EVERY_SIZE, *AT_FIRST_SIZE}
    return [(name, size) for name, size in [*everywhere, *first] if name in chosen]


def open_bench(
    case: Case, sizes: Sequence[Size], settings: PipelineSettings
) -> tuple["DenoiseBench", dict[str, object]]:
    """The benchmark, and a description of its settings."""
    for size in sizes:
        check_shape(case.model, size, case.frames)
    set_cache_folder(settings)
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    flops = {f"{w}x{h}": forward_flops(case.model, (w, h), case.frames) for w, h in sizes}
    about: dict[str, object] = {
        **asdict(case),
        "dtype": str(dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "teraflop_per_pass": {label: round(value / 1e12, 3) for label, value in flops.items()},
    }
    return DenoiseBench(case, (device, dtype)), about


class DenoiseBench:
    """Measures the variants on one denoiser with random weights.

    The timed rounds are passes of one clip: new latents, the same prompt.
    """

    def __init__(self, case: Case, device_and_dtype: tuple[torch.device, torch.dtype]) -> None:
        self._case = case
        self._device_and_dtype = device_and_dtype
        self._is_cuda = device_and_dtype[0].type == "cuda"
        self._network = build_denoiser(case.model, *device_and_dtype)
        self._compiler = CompiledBlocks([self._network], case.backend)
        self._attention_of_graphs: SDPBackend | None = None
        self._samples: dict[Size, Inputs] = {}
        self._outputs: dict[Size, dict[str, Tensor]] = {}

    @torch.inference_mode()
    def measure(self, variant: str, size: Size) -> Measured:
        """One pass that warms up or compiles, then `rounds` timed passes."""
        if variant in (TEXT, TEXT_CACHED):
            return self._measure_text(
                self._encode_text() if variant == TEXT else self._read_cached_text(size)
            )
        if variant == FLOAT32:
            return self._measure_float32(size)
        if variant == WHOLE:
            self._compiler.switch_off()
            whole = torch.compile(self._network, backend=self._case.backend)
            return self._measure_forward(variant, size, Variant(is_compiled=True), whole)
        if variant in {FUSED, FUSED_TORCH, FUSED_AT_ONCE}:
            return self._measure_fused(variant, size)
        chosen = FORWARDS[variant]
        if chosen.needs_cuda and not self._is_cuda:
            raise DeviceError(f"{variant} attention needs a GPU")
        self._switch(chosen)
        return self._measure_forward(variant, size, chosen, self._network)

    def _measure_fused(self, name: str, size: Size) -> Measured:
        if not self._is_cuda:
            raise DeviceError(f"{name} needs a GPU")
        self._compiler.switch_off()
        fused = recipe_of(self._case.model).family.fuse(self._network, self._choose_attention(name))
        if fused is None:
            raise DeviceError(f"{self._case.model} has no fused blocks")
        fused.switch_on()
        try:
            return self._measure_forward(name, size, Variant(), self._network)
        finally:
            fused.switch_off()

    def _choose_attention(self, name: str) -> Attention:
        if name == FUSED_TORCH:
            return torch_attention
        chosen = choose_attention(self._network)
        if name == FUSED_AT_ONCE:
            if chosen is not flash_attention:
                raise DeviceError("flash-attn-4 is not installed, or it lost its trial")
            return flash_at_once
        return chosen

    def _switch(self, variant: Variant) -> None:
        if not variant.is_compiled:
            self._compiler.switch_off()
            return
        if variant.attention is not self._attention_of_graphs:
            torch.compiler.reset()  # a compiled graph keeps the attention backend of its trace
            self._attention_of_graphs = variant.attention
            self._compiler.switch_off()
        self._compiler.switch_on()

    def _measure_forward(self, name: str, size: Size, variant: Variant, network: Any) -> Measured:
        """Run the shared input once to warm up or compile, and compare its output; then time the rounds."""
        run = partial(_forward, network, passes=variant.passes)
        hits = _compiler_cache_hits()
        with _attention(variant.attention):
            with _recorded_attention(is_recorded=not variant.is_compiled) as kernels:
                first, output = self._timed(run, self._sample(size, is_doubled=variant.is_doubled))
            hits = _compiler_cache_hits() - hits
            self._reset_peak()
            given = [self._next_pass(size, is_doubled=variant.is_doubled) for _ in range(self._case.rounds)]
            rounds = [self._timed(run, one)[0] for one in given]
            queued, _ = self._timed(lambda all_given: [run(one) for one in all_given], given)
        return Measured(
            statistics.median(rounds),
            tuple(rounds),
            first,
            self._peak(),
            queued / len(rounds),
            self._compare(name, size, output[:1].float()),
            tuple(kernels),
            hits if variant.is_compiled else None,
        )

    def _measure_float32(self, size: Size) -> Measured:
        """One pass with the same weights in float32: the rounding error of each variant."""
        self._compiler.switch_off()
        precise = deepcopy(self._network).float()
        sample = self._sample(size).to_dtype(torch.float32)
        self._reset_peak()
        seconds, reference = self._timed(partial(_forward, precise), sample)
        differences = {n: relative_norm(out, reference) for n, out in self._outputs.get(size, {}).items()}
        return Measured(seconds, (seconds,), seconds, self._peak(), None, differences)

    def _measure_text(self, run: Callable[[], object]) -> Measured:
        self._reset_peak()
        first, *seconds = (self._timed(lambda _: run(), None)[0] for _ in range(1 + self._case.rounds))
        return Measured(statistics.median(seconds), tuple(seconds), first, self._peak())

    def _encode_text(self) -> Callable[[], object]:
        """Encodes a prompt and a negative prompt, one after the other, as the pipelines do."""
        device, dtype = self._device_and_dtype
        recipe = recipe_of(self._case.model)
        encoder = build_text_encoder(recipe, device, dtype)
        tokens = torch.randint(0, encoder.config.vocab_size, (1, recipe.text_tokens), device=device)
        return lambda: [encoder(tokens, torch.ones_like(tokens)) for _ in range(2)]

    def _read_cached_text(self, size: Size) -> Callable[[], object]:
        """Reads the same two embeddings from the cache."""
        cache = TextCache(1 << 30)
        cache.put("digest", {name: self._draw(size).text for name in ("prompt", "negative")})
        return lambda: [
            text.to(self._device_and_dtype[0], copy=True) for text in (cache.get("digest") or {}).values()
        ]

    def _compare(self, name: str, size: Size, output: Tensor) -> dict[str, float]:
        kept = self._outputs.setdefault(size, {})
        kept[name] = output
        return {EAGER: relative_norm(output, kept[EAGER])} if EAGER in kept and name != EAGER else {}

    def _draw(self, size: Size) -> Inputs:
        return draw_inputs(self._case.model, size, self._case.frames, self._device_and_dtype)

    def _sample(self, size: Size, *, is_doubled: bool = False) -> Inputs:
        if size not in self._samples:
            self._samples[size] = self._draw(size)
        return self._samples[size].doubled() if is_doubled else self._samples[size]

    def _next_pass(self, size: Size, *, is_doubled: bool) -> Inputs:
        """Another step of the clip that the sample belongs to."""
        sample, drawn = self._sample(size), self._draw(size)
        given = replace(sample, latents=drawn.latents, timestep=drawn.timestep)
        return given.doubled() if is_doubled else given

    def _timed(self, run: Callable[[Any], T], given: object) -> tuple[float, T]:
        self._synchronise()
        started = time.perf_counter()
        result = run(given)
        self._synchronise()
        return time.perf_counter() - started, result

    def _synchronise(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()

    def _reset_peak(self) -> None:
        if self._is_cuda:
            torch.cuda.reset_peak_memory_stats()

    def _peak(self) -> int | None:
        return torch.cuda.max_memory_allocated() if self._is_cuda else None


def relative_norm(output: Tensor, reference: Tensor) -> float:
    """The norm of the difference divided by the norm of the reference."""
    output, reference = output.double(), reference.double()
    return float((output - reference).norm() / reference.norm())


def _forward(network: Any, inputs: Inputs, passes: int = 1) -> Tensor:
    for _ in range(passes):
        output: Tensor = network(
            hidden_states=inputs.latents,
            timestep=inputs.timestep,
            encoder_hidden_states=inputs.text,
            **inputs.others,
            return_dict=False,
        )[0]
    return output


def _attention(backend: SDPBackend | None) -> AbstractContextManager[object]:
    return nullcontext() if backend is None else sdpa_kernel(backend)


@contextmanager
def _recorded_attention(*, is_recorded: bool) -> Iterator[list[str]]:
    """A list that holds the torch names of the attention kernels called in the block, filled when it ends."""
    from torch.profiler import ProfilerActivity, profile

    kernels: list[str] = []
    if not is_recorded:  # the profiler would record the compiler
        yield kernels
        return
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        yield kernels
    names = {event.key.removeprefix("aten::") for event in profiler.key_averages()}
    kernels += sorted(name for name in names if name.startswith("_scaled_dot_product_"))


def _compiler_cache_hits() -> int:
    """Compiled graphs read from the disk cache so far in this process."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["fxgraph_cache_hit"])
