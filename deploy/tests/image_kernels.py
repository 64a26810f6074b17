"""Runs inside the worker image, without a GPU: torch imports, and Triton compiles (ADR 95)."""

import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver
from triton.compiler import ASTSource
from triton.runtime.build import _build

CAPABILITIES = (89, 90, 120)  # L40S, H100, RTX PRO 6000 Blackwell


@triton.jit
def exponentials(values, count, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    found = tl.load(values + places, mask=places < count)
    tl.store(values + places, tl.exp2(found), mask=places < count)


source = ASTSource(exponentials, {"values": "*fp32", "count": "i32", "block": "constexpr"}, {"block": 128})
for capability in CAPABILITIES:
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
# The launcher is linked to libcuda on a host with a driver; here it is compiled only.
launcher = Path(driver.__file__).parent / "driver.c"
assert Path(_build("cuda_utils", str(launcher), "/tmp", [], driver.include_dirs, [], [])).is_file()
sys.stdout.write(f"CUDA {torch.version.cuda}")
