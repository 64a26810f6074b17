"""Layers of a VAE in another dtype, with channels last."""

from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def converted(module: M, dtype: torch.dtype) -> M:
    """A copy in this dtype with channels last. cuDNN convolves fastest so, and copies nothing."""
    copy: Any = deepcopy(module).to(dtype)  # torch's types do not know `memory_format` here
    result: M = copy.to(memory_format=torch.channels_last_3d).requires_grad_(requires_grad=False)
    return result


def unsupported_activation(decoder: nn.Module) -> str | None:
    """Why these layers cannot be activated by `activate`; None if they can."""
    used = {type(m.nonlinearity).__name__ for m in decoder.modules() if hasattr(m, "nonlinearity")}
    return None if used <= {"SiLU"} else f"the VAE's activation is {', '.join(sorted(used))}, not SiLU"
