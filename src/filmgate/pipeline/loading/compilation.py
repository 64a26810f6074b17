"""Compiled transformer blocks: when they pay, on which networks, and the way back when compilation fails.

One block is compiled once and serves all its copies, so a model costs seconds of compiling, not minutes.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

import torch

from filmgate.pipeline.loading.families import denoisers_of
from filmgate.pipeline.loading.loader import Pipeline, VideoModel
from filmgate.pipeline.loading.memory import Offload
from filmgate.settings import PipelineSettings
from filmgate.telemetry.logs import Log

PROVEN_FAMILIES = ("wan",)
WORTHWHILE_FORWARDS = 8
"""A clip of fewer forward passes (a canary, a distilled model) would be long in earning back the compiler."""
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"

Network = Any
"""A diffusers model; diffusers ships no types."""
T = TypeVar("T")
_log = Log("compilation")


class BlockCompiler:
    """The repeated blocks of a model's denoisers, which run compiled or as they are."""

    def __init__(self, networks: Sequence[Network], backend: str = "inductor") -> None:
        self._networks = networks
        self._backend = backend
        self._has_failed = False
        self.is_on = False

    def switch_on(self) -> None:
        """Compile at the next forward pass. A second shape is compiled once more, for all shapes to come."""
        if not self.is_on:
            for network in self._networks:
                network.compile_repeated_blocks(backend=self._backend)
            self.is_on = True

    def switch_off(self) -> None:
        for block in self._blocks():
            block._compiled_call_impl = None  # noqa: SLF001 - torch has no public way back; tests/contract
        self.is_on = False

    def run(self, work: Callable[[], T], *, is_worthwhile: bool) -> T:
        """Run `work`, on compiled blocks if that is worthwhile, whatever ran before.

        Should it fail on compiled blocks, it runs once more without them, and so does all later work.
        Compilers fail at the first pass of a shape, so little is done twice; an error of another cause comes
        back from the second run.
        """
        if self._has_failed or not self._networks or not is_worthwhile:
            self.switch_off()
            return work()
        self.switch_on()
        try:
            return work()
        except torch.OutOfMemoryError:
            raise
        except (
            RuntimeError,
            OSError,
            ImportError,
        ) as exc:  # no Triton, no C compiler, no room on disk, a bug
            self._has_failed = True
            self.switch_off()
            _log.warning(
                f"the denoiser runs uncompiled: torch.compile failed with {type(exc).__name__}; "
                "`filmgate doctor` and pipeline.compile = off are the remedies",
                reason=type(exc).__name__,
            )
        return work()

    def _blocks(self) -> Iterator[torch.nn.Module]:
        for network in self._networks:
            names = network._repeated_blocks  # noqa: SLF001 - tests/contract
            yield from (block for block in network.modules() if type(block).__name__ in names)


def open_compiler(pipe: Pipeline, settings: PipelineSettings) -> BlockCompiler:
    """The compiler for every denoiser of this pipeline that has repeated blocks: both experts of Wan 2.2."""
    place_cache(settings)
    return BlockCompiler([n for n in denoisers_of(pipe) if getattr(n, "_repeated_blocks", None)])


def place_cache(settings: PipelineSettings) -> None:
    """Have compiled kernels kept where the setting says; before anything is compiled."""
    if settings.compile_cache:
        os.environ[CACHE_VARIABLE] = settings.compile_cache  # torch reads this variable and nothing else


def is_worthwhile(model: VideoModel, settings: PipelineSettings, forwards: int, *, is_reused: bool) -> bool:
    """Whether this clip should run on compiled blocks.

    `auto` compiles in a process that renders many clips, on CUDA, where it has been measured. Layers that
    come and go over PCIe are never compiled: the copies are what takes the time.
    """
    if settings.compile == "off" or model.placement.offload is Offload.LAYERS:
        return False
    if settings.compile == "on":
        return True
    return (
        is_reused
        and model.placement.device.type == "cuda"
        and model.family.name in PROVEN_FAMILIES
        and settings.quality == "full"
        and forwards >= WORTHWHILE_FORWARDS
    )


def find_obstacle() -> str | None:
    """What torch.compile would miss on a GPU; None where it has what it needs."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang")):
        return "there is no C compiler"
    return None
