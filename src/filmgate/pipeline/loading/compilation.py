"""Compiled transformer blocks: when to use them, and how to continue without them.

A transformer repeats one block. Compiling that block once for all its copies takes seconds, not minutes.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

import torch

from filmgate.pipeline.kernel_cache import set_cache_folder
from filmgate.pipeline.loading.families.base import Family, Pipeline
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.loading.memory import Offload
from filmgate.settings import PipelineSettings
from filmgate.telemetry.logs import Log

Network = Any
"""A diffusers model; diffusers ships no types."""
T = TypeVar("T")
_log = Log("compilation")


class BlockCompiler:
    """Switches the repeated blocks of a model's denoisers between compiled and eager."""

    def __init__(self, networks: Sequence[Network], backend: str = "inductor") -> None:
        self._networks = networks
        self._backend = backend
        self._has_failed = False
        self.is_on = False

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

    def run(self, work: Callable[[], T], *, is_compiled: bool) -> T:
        """Run `work` on compiled or eager blocks, regardless of how the previous work ran.

        If it fails on compiled blocks, it runs again on eager ones, and so does all later work. Compilers
        fail at the first pass of a shape, so little is repeated. The second run raises an error that has
        another cause.
        """
        if self._has_failed or not self._networks or not is_compiled:
            self.switch_off()
            return work()
        self.switch_on()
        try:
            return work()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, OSError, ImportError) as exc:  # no Triton, no C compiler, disk full, a bug
            self._has_failed = True
            self.switch_off()
            _log.warning(
                f"torch.compile failed with {type(exc).__name__}; the denoiser runs uncompiled. "
                "Run `filmgate doctor`, or set pipeline.compile to off",
                reason=type(exc).__name__,
            )
        return work()

    def _blocks(self) -> Iterator[torch.nn.Module]:
        for network in self._networks:
            names = network._repeated_blocks  # noqa: SLF001 - guarded by tests/contract
            yield from (block for block in network.modules() if type(block).__name__ in names)


def open_compiler(pipe: Pipeline, family: Family, settings: PipelineSettings) -> BlockCompiler:
    """The compiler for every denoiser of this pipeline that has repeated blocks."""
    set_cache_folder(settings)
    return BlockCompiler([n for n in family.denoisers_of(pipe) if getattr(n, "_repeated_blocks", None)])


def should_compile(model: VideoModel, settings: PipelineSettings, *, is_reused: bool) -> bool:
    """Whether a clip runs on compiled blocks.

    `auto` compiles in a process that renders many clips, on CUDA, for proven families: over the life of a
    worker it pays for clips of one step too. Offloaded layers are never compiled: copying them over PCIe
    takes most of the time.
    """
    if settings.compile == "off" or model.placement.offload is Offload.LAYERS:
        return False
    if settings.compile == "on":
        return True
    return is_reused and model.placement.device.type == "cuda" and model.family.is_compilation_proven


def find_missing_tool() -> str | None:
    """What torch.compile needs on a GPU and does not find here; None if nothing is missing."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang")):
        return "there is no C compiler"
    return None
