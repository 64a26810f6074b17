"""Launches Triton kernels on the GPU of their tensors, which may not be the thread's current one."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

MAX_KEYS = 10_000  # of one launcher; every size of a picture needs several


def on_gpu_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Make the GPU of this tensor the current one: Triton and flash-attn-4 launch on that.

    It usually is already, and then nothing happens: a change takes several microseconds.
    """
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(tensor.device)


def is_kernel_error(error: Exception) -> bool:
    """Whether Triton or CuTe could not compile or launch a kernel. Their errors are no RuntimeErrors."""
    return type(error).__module__.partition(".")[0] in ("triton", "cutlass")


def launch(kernel: Any, programs: int | tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch as Triton does. The first argument is a tensor."""
    grid = (programs,) if isinstance(programs, int) else programs
    with on_gpu_of(arguments[0]):
        kernel[grid](*arguments, **constants)


class Launcher:
    """Launches compiled kernels directly, without Triton's inspection of every argument.

    The inspection takes the host 70 us per launch, longer than a small kernel runs. Everything it inspects is
    in `values` and in the dtypes. Every tensor must start at a multiple of 16 bytes, as tensors allocated by
    torch do.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._compiled: dict[tuple[object, ...], Any] = {}

    def __call__(self, programs: int, warps: int, tensors: tuple[Tensor, ...], *values: float) -> None:
        key = (tensors[0].device, warps, *[tensor.dtype for tensor in tensors], *values)
        compiled = self._compiled.get(key)
        with on_gpu_of(tensors[0]):
            if compiled is None:  # always so with Triton's interpreter, which compiles nothing
                if len(self._compiled) >= MAX_KEYS:
                    self._compiled.clear()
                self._compiled[key] = self._kernel[programs, 1, 1](*tensors, *values, num_warps=warps)
            else:
                compiled[programs, 1, 1](*tensors, *values)
