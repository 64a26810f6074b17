"""`filmgate bench denoise`: one forward pass of the denoiser, as it is and with what may speed it up."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from filmgate.errors import DeviceError, UsageError
from filmgate.pipeline.bench.denoisers import (
    TEXT_TOKENS,
    Inputs,
    build_denoiser,
    build_text_encoder,
    check_shape,
    draw_inputs,
    forward_flops,
)
from filmgate.pipeline.loading.compilation import BlockCompiler, set_cache_folder
from filmgate.pipeline.loading.memory import choose_device, choose_dtype
from filmgate.pipeline.text.cache import TextCache
from filmgate.settings import PipelineSettings

Size = tuple[int, int]
T = TypeVar("T")

EAGER, COMPILED, CUDNN, FLASH = "eager", "compiled", "cudnn", "flash"
COMPILED_CUDNN, WHOLE = "compiled_cudnn", "whole"
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
VARIANTS = (*FORWARDS, WHOLE, FLOAT32, TEXT, TEXT_CACHED)
AT_EVERY_SIZE = (EAGER, COMPILED)
# What matters most first: a benchmark may be cut off.
AT_FIRST_SIZE = (CUDNN, TWO_FORWARDS, ONE_BATCH, TEXT, TEXT_CACHED, FLOAT32, COMPILED_CUDNN, FLASH)


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant at one size: median seconds, and how far its output is from others' on the same input."""

    seconds: float
    all_seconds: tuple[float, ...]
    first_seconds: float  # with warming up or compiling
    peak_device_bytes: int | None
    relative_differences: dict[str, float] = field(default_factory=dict)
    attention: tuple[str, ...] = ()
    compiler_cache_hits: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: a denoiser by name, the clip's length, timed rounds, and torch.compile's backend."""

    model: str
    frames: int = 81
    rounds: int = 3
    backend: str = "inductor"


def plan(sizes: Sequence[Size], asked: AbstractSet[str]) -> list[tuple[str, Size]]:
    """What to measure, most important first; without a wish, all but the whole-model compile."""
    if unknown := asked - set(VARIANTS):
        raise UsageError(f"{', '.join(sorted(unknown))}; known: {', '.join(VARIANTS)}", option="--variants")
    everywhere = [(name, size) for size in sizes for name in AT_EVERY_SIZE]
    first = [(name, sizes[0]) for name in (*AT_FIRST_SIZE, WHOLE)]
    wanted = asked or {*AT_EVERY_SIZE, *AT_FIRST_SIZE}
    return [(name, size) for name, size in [*everywhere, *first] if name in wanted]


def open_bench(
    case: Case, sizes: Sequence[Size], settings: PipelineSettings
) -> tuple["DenoiseBench", dict[str, object]]:
    """The benchmark, and the words that go with its figures."""
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
    """Measures the variants on one random-weight denoiser; inputs are drawn anew for every timed round."""

    def __init__(self, case: Case, place: tuple[torch.device, torch.dtype]) -> None:
        self._case = case
        self._place = place
        self._is_cuda = place[0].type == "cuda"
        self._network = build_denoiser(case.model, *place)
        self._compiler = BlockCompiler([self._network], case.backend)
        self._attention_of_graphs: SDPBackend | None = None
        self._samples: dict[Size, Inputs] = {}
        self._outputs: dict[Size, dict[str, Tensor]] = {}

    @torch.inference_mode()
    def measure(self, variant: str, size: Size) -> Measured:
        """One pass that warms up or compiles, then `rounds` timed ones."""
        if variant in (TEXT, TEXT_CACHED):
            return self._measure_text(self._encoding() if variant == TEXT else self._finding(size))
        if variant == FLOAT32:
            return self._measure_float32(size)
        if variant == WHOLE:
            self._compiler.switch_off()
            whole = torch.compile(self._network, backend=self._case.backend)
            return self._measure_forward(variant, size, Variant(is_compiled=True), whole)
        chosen = FORWARDS[variant]
        if chosen.needs_cuda and not self._is_cuda:
            raise DeviceError(f"{variant} attention runs on a GPU alone")
        self._switch(chosen)
        return self._measure_forward(variant, size, chosen, self._network)

    def _switch(self, variant: Variant) -> None:
        if not variant.is_compiled:
            self._compiler.switch_off()
            return
        if variant.attention is not self._attention_of_graphs:
            torch.compiler.reset()  # a graph keeps the attention it was traced with
            self._attention_of_graphs = variant.attention
            self._compiler.switch_off()
        self._compiler.switch_on()

    def _measure_forward(self, name: str, size: Size, variant: Variant, network: Any) -> Measured:
        """The first pass is of the input all variants share; it warms up or compiles, and is compared."""
        run = partial(_forward, network, passes=variant.passes)
        hits = _compiler_cache_hits()
        with _attention(variant.attention):
            with _watched_attention(is_watching=not variant.is_compiled) as watched:
                first, output = self._timed(run, self._sample(size, is_doubled=variant.is_doubled))
            hits = _compiler_cache_hits() - hits
            self._reset_peak()
            rounds = [
                self._timed(run, self._draw(size, is_doubled=variant.is_doubled))[0]
                for _ in range(self._case.rounds)
            ]
        return Measured(
            statistics.median(rounds),
            tuple(rounds),
            first,
            self._peak(),
            self._compare(name, size, output[:1].float()),
            tuple(watched),
            hits if variant.is_compiled else None,
        )

    def _measure_float32(self, size: Size) -> Measured:
        """The same weights in float32, once: how far rounding alone takes each variant from the truth."""
        self._compiler.switch_off()
        precise = deepcopy(self._network).float()
        sample = self._sample(size).to_dtype(torch.float32)
        self._reset_peak()
        seconds, truth = self._timed(partial(_forward, precise), sample)
        distances = {n: relative_norm(out, truth) for n, out in self._outputs.get(size, {}).items()}
        return Measured(seconds, (seconds,), seconds, self._peak(), distances)

    def _measure_text(self, run: Callable[[], object]) -> Measured:
        self._reset_peak()
        first, *seconds = (self._timed(lambda _: run(), None)[0] for _ in range(1 + self._case.rounds))
        return Measured(statistics.median(seconds), tuple(seconds), first, self._peak())

    def _encoding(self) -> Callable[[], object]:
        """A prompt and a negative prompt, one after the other, as the pipelines encode them."""
        device, dtype = self._place
        encoder = build_text_encoder(self._case.model, device, dtype)
        tokens = torch.randint(0, encoder.config.vocab_size, (1, TEXT_TOKENS), device=device)
        return lambda: [encoder(tokens, torch.ones_like(tokens)) for _ in range(2)]

    def _finding(self, size: Size) -> Callable[[], object]:
        """The same two embeddings out of the cache."""
        cache = TextCache(1 << 30)
        cache.put("digest", {name: self._draw(size).text for name in ("prompt", "negative")})
        return lambda: [text.to(self._place[0], copy=True) for text in (cache.get("digest") or {}).values()]

    def _compare(self, name: str, size: Size, output: Tensor) -> dict[str, float]:
        kept = self._outputs.setdefault(size, {})
        kept[name] = output
        return {EAGER: relative_norm(output, kept[EAGER])} if EAGER in kept and name != EAGER else {}

    def _draw(self, size: Size, *, is_doubled: bool = False) -> Inputs:
        drawn = draw_inputs(self._case.model, size, self._case.frames, self._place)
        return drawn.doubled() if is_doubled else drawn

    def _sample(self, size: Size, *, is_doubled: bool = False) -> Inputs:
        if size not in self._samples:
            self._samples[size] = self._draw(size)
        return self._samples[size].doubled() if is_doubled else self._samples[size]

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
    """Length of the difference over the length of the reference."""
    output, reference = output.double(), reference.double()
    return float((output - reference).norm() / reference.norm())


def _forward(network: Any, inputs: Inputs, passes: int = 1) -> Tensor:
    for _ in range(passes):
        output: Tensor = network(
            hidden_states=inputs.latents,
            timestep=inputs.timestep,
            encoder_hidden_states=inputs.text,
            return_dict=False,
        )[0]
    return output


def _attention(backend: SDPBackend | None) -> AbstractContextManager[object]:
    return nullcontext() if backend is None else sdpa_kernel(backend)


@contextmanager
def _watched_attention(*, is_watching: bool) -> Iterator[list[str]]:
    """The attention kernels called inside, by torch's names for them; known when it ends."""
    from torch.profiler import ProfilerActivity, profile

    watched: list[str] = []
    if not is_watching:  # beside the compiler a profiler would record the compiler
        yield watched
        return
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        yield watched
    names = {event.key.removeprefix("aten::") for event in profiler.key_averages()}
    watched += sorted(name for name in names if name.startswith("_scaled_dot_product_"))


def _compiler_cache_hits() -> int:
    """Graphs the compiler found on disk so far in this process."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["fxgraph_cache_hit"])
