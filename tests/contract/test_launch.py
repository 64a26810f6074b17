"""Direct launches of compiled kernels: through Triton first, and in bounded memory."""

import torch

from filmgate.pipeline import launch
from filmgate.pipeline.launch import Launcher


class Kernel:
    """A kernel as Triton's: a launch returns the compiled kernel, which can be launched directly."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        def run(*given, num_warps):
            self.launches.append(("through Triton", grid, given[1:], num_warps))
            return Compiled(self.launches)

        return run


class Compiled:
    def __init__(self, launches):
        self.launches = launches

    def __getitem__(self, grid):
        return lambda *given: self.launches.append(("directly", grid, given[1:]))


def test_a_kernel_is_launched_directly_once_it_is_compiled_for_its_values():
    kernel, tensors = Kernel(), (torch.zeros(1),)
    start = Launcher(kernel)
    for programs, width in ((3, 16), (4, 16), (4, 32), (5, 32)):
        start(programs, 2, tensors, width)
    assert kernel.launches == [
        ("through Triton", (3, 1, 1), (16,), 2),
        ("directly", (4, 1, 1), (16,)),
        ("through Triton", (4, 1, 1), (32,), 2),
        ("directly", (5, 1, 1), (32,)),
    ]


def test_memory_does_not_grow_with_the_number_of_sizes(monkeypatch):
    monkeypatch.setattr(launch, "MAX_KEYS", 8)
    start = Launcher(Kernel())
    for width in range(100):
        start(1, 2, (torch.zeros(1),), width)
        assert len(start._compiled) <= 8
