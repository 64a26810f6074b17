"""Sums over the bits of loaded weights: any single flipped bit changes one of them.

A sum reads every weight once, at the speed of the memory, so the whole model is checked in milliseconds on a
GPU. The canary clip alone would miss a flipped bit that changes the picture too little.
"""

from collections.abc import Mapping

import torch

from filmgate.pipeline.loading.families.base import Pipeline

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WeightSums = Mapping[str, int]


def sum_weights(pipe: Pipeline) -> WeightSums:
    """One sum per component of the pipeline. Weights that are offloaded layer by layer are not in memory."""
    modules = ((name, part) for name, part in pipe.components.items() if isinstance(part, torch.nn.Module))
    return {name: _sum_module(part) for name, part in modules}


def find_changes(before: WeightSums, after: WeightSums) -> list[str]:
    """The components whose weights have changed."""
    return [name for name, value in before.items() if after.get(name) != value]


@torch.inference_mode()
def _sum_module(module: torch.nn.Module) -> int:
    weights = [each for each in module.parameters() if each.device.type != "meta" and each.numel()]
    sums = [each.view(_INTEGERS[each.element_size()]).sum(dtype=torch.int64) for each in weights]
    # One copy to the host instead of one per weight.
    return int(torch.stack([each.to(sums[0].device) for each in sums]).sum().item()) if sums else 0
