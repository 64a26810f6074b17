"""Makes the schedulers of diffusers queue their work without stopping the host.

The host must stay ahead of the device: while the last step runs, decode is queued behind it and the next clip
is prepared. Values do not change.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def find_first_step(scheduler: Any) -> None:
    """Look up where the schedule starts, which diffusers does after the first pass: the host would wait."""
    if getattr(scheduler, "begin_index", 0) is None and hasattr(scheduler, "index_for_timestep"):
        timesteps = scheduler.timesteps.cpu()  # on the GPU the search would stop the host three times
        scheduler.set_begin_index(scheduler.index_for_timestep(timesteps[0], timesteps))


@contextmanager
def steps_without_waiting(scheduler: Any) -> Iterator[None]:
    """Inside the block, `scheduler.step` does not wait for the device."""
    step = scheduler.step

    @wraps(step)
    def queue_step(*args: Any, **kwargs: Any) -> Any:
        with WithoutWaiting():
            return step(*args, **kwargs)

    scheduler.step = queue_step
    try:
        yield
    finally:
        del scheduler.step


class WithoutWaiting(TorchFunctionMode):
    """Replaces the calls of a scheduler that wait for a GPU by others with the same result.

    A copy of a number from pageable memory waits for the stream; a kernel that fills it in does not. Solving
    waits only to report a singular matrix, which coefficients of a schedule never form.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.to and not kwargs and len(args) == 2 and _is_number(args[0]):
            number, target = args
            if isinstance(target, torch.device) and target.type == "cuda":
                return torch.full((), number.item(), dtype=number.dtype, device=target)
        if func is torch.linalg.solve:
            return torch.linalg.solve_ex(*args, **(kwargs or {})).result
        return func(*args, **(kwargs or {}))


def _is_number(tensor: Tensor) -> bool:
    return tensor.ndim == 0 and tensor.device.type == "cpu"
