"""The fastest way to run a denoiser here: fused kernels, compiled blocks, or diffusers' own blocks (eager).

A transformer repeats one block. Compiling that block once for all its copies takes seconds, not minutes.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

import torch

from filmgate.pipeline.denoise.attention import FLASH_PACKAGE, choose_attention
from filmgate.pipeline.launch import is_kernel_error
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.loading.memory import Offload
from filmgate.pipeline.trials import (
    Candidate,
    Trial,
    choose,
    network_key,
    relative_error,
    set_cache_folder,
    time_both,
)
from filmgate.settings import PipelineSettings
from filmgate.telemetry.logs import Log

log = Log("denoise")

Network = Any
"""A diffusers model; diffusers ships no types."""
T = TypeVar("T")

HALVES = (torch.bfloat16, torch.float16)
MIN_CAPABILITY = (8, 0)
TEST_LATENTS = (2, 12, 20)  # frames, rows and columns: 120 tokens, no multiple of a tile
TRIAL_LATENTS = (5, 60, 104)  # a picture at 480p: long enough for the GPU not to wait for launches
MAX_ERROR = 0.05  # relative norm; two ways to round bfloat16 differ by 0.015 after 30 blocks
# No Triton, no C compiler, a full disk, a bug in a kernel or in a compiler.
FAILURES = (RuntimeError, OSError, ImportError)


class Blocks(Protocol):
    """One way to run the blocks of a model's denoisers."""

    def may_run(self, *, is_single: bool) -> bool:
        """Whether a clip runs this way. `is_single`: nothing that pays off over many clips is worth it."""
        ...

    def running(self) -> AbstractContextManager[None]:
        """Clips in the block run this way."""
        ...

    def give_up(self, exc: Exception) -> None:
        """Log why this way failed, and do not use it again."""
        ...


class Denoiser:
    """Runs the clips of one model in the first way that may run and works: fused, compiled, eager.

    `is_reused` means that this process renders many clips, so that compiling pays off.
    """

    def __init__(self, model: VideoModel, settings: PipelineSettings, *, is_reused: bool) -> None:
        set_cache_folder(settings)
        for_many = should_compile(model, settings, is_reused=is_reused)
        for_one = should_compile(model, settings, is_reused=False)
        networks = model.family.denoisers_of(model.pipe)
        self.compiled = CompiledBlocks(networks, for_one=for_one, for_many=for_many)
        self.fused = FusedBlocks(model, settings, self.compiled)

    @property
    def is_decided(self) -> bool:
        """Whether it is known if fused kernels are used."""
        return self.fused.networks is not None

    def decide(self) -> None:
        """Find out if fused kernels are used. Times passes, so no other clip should be on the device."""
        if not self.is_decided:
            self.fused.decide()

    def run(self, work: Callable[[], T], *, is_single: bool) -> T:
        """Run a clip. If it fails in one way and succeeds in the next, the first is given up.

        Compilers fail at the first pass of a shape, so little is repeated. An error that every way raises has
        another cause, such as the request, and gives up nothing.
        """
        failed: list[tuple[Blocks, Exception]] = []
        ways: tuple[Blocks, ...] = (self.fused, self.compiled)
        for way in (way for way in ways if way.may_run(is_single=is_single)):
            try:
                with way.running():
                    return self._succeed(work(), failed)
            except torch.OutOfMemoryError:
                raise
            except Exception as exc:
                if not (isinstance(exc, FAILURES) or is_kernel_error(exc)):
                    raise
                failed.append((way, exc))
        self.compiled.switch_off()
        return self._succeed(work(), failed)

    @staticmethod
    def _succeed(result: T, failed: Sequence[tuple[Blocks, Exception]]) -> T:
        for way, exc in failed:
            way.give_up(exc)
        return result


class CompiledBlocks:
    """Switches the repeated blocks of a model's denoisers between compiled and eager."""

    def __init__(
        self,
        networks: Sequence[Network],
        backend: str = "inductor",
        *,
        for_one: bool = True,
        for_many: bool = True,
    ) -> None:
        self._networks = [each for each in networks if getattr(each, "_repeated_blocks", None)]
        self._backend = backend
        self._for_one, self._for_many = for_one, for_many
        self.is_on = False

    def may_run(self, *, is_single: bool) -> bool:
        return bool(self._networks) and (self._for_one if is_single else self._for_many)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The blocks stay compiled after the block: the next clip probably needs them too."""
        self.switch_on()
        yield

    def give_up(self, exc: Exception) -> None:
        self._networks = []
        log.warning(
            "torch.compile failed; the denoiser runs uncompiled. "
            "Run `filmgate doctor`, or set pipeline.compile to off",
            error=exc,
            reason=type(exc).__name__,
        )

    def switch_on(self) -> None:
        """Compile at the next pass. The second shape is compiled with dynamic sizes and serves all others."""
        if not self.is_on:
            for network in self._networks:
                network.compile_repeated_blocks(backend=self._backend)
            self.is_on = True

    def switch_off(self) -> None:
        for block in self._blocks():
            block._compiled_call_impl = None  # noqa: SLF001 - torch has no public call for this; tests/contract
        self.is_on = False

    def _blocks(self) -> Iterator[torch.nn.Module]:
        for network in self._networks:
            names = network._repeated_blocks  # noqa: SLF001 - guarded by tests/contract
            yield from (block for block in network.modules() if type(block).__name__ in names)


class FusedBlocks:
    """Fused kernels, if they are supported, agree with diffusers' blocks, and win a timed trial.

    `networks` is None until that is decided.
    """

    def __init__(self, model: VideoModel, settings: PipelineSettings, compiled: CompiledBlocks) -> None:
        self._model = model
        self._compiled = compiled
        self.networks: list[Any] | None = None if is_supported(model, settings) else []

    def decide(self) -> None:
        """Raises nothing. If there was not enough memory, the next clip decides."""
        networks: list[Any] = []

        def error() -> float | None:
            networks.extend(open_fused(self._model))
            return largest_error(networks) if networks else None

        device, dtype = self._model.placement.device, self._model.placement.dtype
        main, *_ = self._model.family.denoisers_of(self._model.pipe)
        otherwise = "compiled" if self._compiled.may_run(is_single=False) else "eager"
        kind = f"blocks, {self._model.family.name} against {otherwise}"
        key = network_key(kind, main.config, dtype, device, FLASH_PACKAGE)
        found = Candidate("fused kernels", error, MAX_ERROR, key, lambda: self._run_trial(networks[0]))
        is_chosen = choose(found)
        self.networks = None if is_chosen is None else networks if is_chosen else []

    def may_run(self, *, is_single: bool) -> bool:  # noqa: ARG002 - they need no compilation of minutes
        """Step caches of diffusers replace forward passes themselves."""
        return bool(self.networks) and not any(network.has_hooks for network in self.networks or ())

    @contextmanager
    def running(self) -> Iterator[None]:
        networks = self.networks or []
        try:
            for network in networks:
                network.switch_on()
            yield
        finally:
            for network in networks:
                network.switch_off()

    def give_up(self, exc: Exception) -> None:
        self.networks = []
        log.warning("the fused kernels failed; the denoiser runs without them", error=exc)

    def _run_trial(self, network: Any) -> Trial:
        """Against what runs without them: compiled blocks, unless they cannot be compiled here."""
        inputs = network.examples(TRIAL_LATENTS)[0]

        def run_fused() -> None:
            network.switch_on()
            network.run(inputs)
            network.switch_off()

        if self._compiled.may_run(is_single=False):
            try:
                with self._compiled.running():
                    network.run(inputs)
            except FAILURES as exc:
                self._compiled.switch_off()
                self._compiled.give_up(exc)
        return time_both(run_fused, lambda: network.run(inputs), self._model.placement.device)


def should_compile(model: VideoModel, settings: PipelineSettings, *, is_reused: bool) -> bool:
    """Whether a clip runs on compiled blocks where it does not run on fused kernels.

    `auto` compiles in a process that renders many clips, on CUDA, for proven families: over the life of a
    worker it pays for clips of one step too. Offloaded layers are never compiled: copying them over PCIe
    takes most of the time.
    """
    if settings.compile == "off" or model.placement.offload is Offload.LAYERS:
        return False
    if settings.compile == "on":
        return True
    return is_reused and model.placement.device.type == "cuda" and model.family.facts.is_compilation_proven


def is_supported(model: VideoModel, settings: PipelineSettings) -> bool:
    """Whether fused kernels may work here. Offloading replaces the forward passes itself."""
    device = model.placement.device
    return (
        settings.kernels == "auto"
        and settings.compile != "on"
        and model.family.has_fused_blocks
        and model.placement.offload is Offload.NONE
        and model.placement.dtype in HALVES
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
        and find_missing_tool() is None
    )


def open_fused(model: VideoModel) -> list[Any]:
    """Every denoiser of the model with fused kernels, or none if one of them has no such form."""
    networks = []
    for network in model.family.denoisers_of(model.pipe):
        fused = model.family.fuse(network, choose_attention(network))
        if fused is None:
            return []
        networks.append(fused)
    return networks


def largest_error(networks: Sequence[Any]) -> float:
    """How far short passes with the model's own weights are from those without fused kernels.

    The kernels depend on the width of the model, not on the size of the clip.
    """
    return max(_error(network, inputs) for network in networks for inputs in network.examples(TEST_LATENTS))


def _error(network: Any, inputs: dict[str, Any]) -> float:
    exact = network.run(inputs)
    network.switch_on()
    try:
        return relative_error(network.run(inputs), exact)
    finally:
        network.switch_off()


def find_missing_tool() -> str | None:
    """What torch.compile needs on a GPU and does not find here; None if nothing is missing."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang")):
        return "there is no C compiler"
    return None
