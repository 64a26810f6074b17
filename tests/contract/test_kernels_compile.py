"""Kernels are compiled to what a GPU runs, without a GPU: the interpreter takes more than the compiler."""

import json
import os
import subprocess
import sys

COMPILE = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from filmgate.pipeline.decode.fast import group_kernels

HALVES = {"residual", "kept", "looked_up", "cache", "given"}
NUMBERS = {"height", "width", "zoom", "programs", "count"}


def type_of(name):
    if name[:-1] in ("map", "in") or name in HALVES:
        return "*fp16"
    return "i32" if name in NUMBERS else "fp32" if name == "epsilon" else "*fp32"


for kernel_name, form in json.loads(sys.argv[1]):
    kernel = getattr(group_kernels, kernel_name)
    names = kernel.arg_names
    signature = {name: "constexpr" if name in form else type_of(name) for name in names}
    constants = {(names.index(name),): value for name, value in form.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    built = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": group_kernels.WARPS})
    print(kernel_name, len(built.asm["cubin"]))
"""
GATHER = {"has_bias": True, "channels": 128, "groups": 32, "pixels": 16, "rounds": 4}
CONDITION = {"has_cache": True, "channels": 128, "pixels": 16}
FORMS = [
    ("_gather", GATHER | {"frames": 4, "times": 1, "source": 1, "has_residual": True}),
    ("_gather", GATHER | {"frames": 2, "times": 2, "source": 2, "has_residual": False}),
    ("_settle", {"groups": 32, "channels": 512, "block": 4096}),
    ("_condition", CONDITION | {"frames": 4, "latents": 2, "layout": 2, "begins": False}),
    ("_condition", CONDITION | {"frames": 1, "latents": 1, "layout": 0, "begins": True}),
]


def test_the_kernels_around_a_norm_compile_for_hopper(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE, json.dumps(FORMS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    sizes = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, _ in sizes] == [name for name, _ in FORMS]
    assert all(int(size) > 0 for _, size in sizes)
