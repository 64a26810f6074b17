"""The kernels compile for every generation that may use them, without a GPU.

The interpreter accepts code that the compiler rejects.
"""

import json
import os
import subprocess
import sys

COMPILE = """
import json, sys
from importlib import import_module
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

NUMBERS = {"length", "height", "width", "zoom", "programs", "count", "size", "columns", "channel_step"}
NUMBERS |= {"frame_step", "rows_per_timestep", "tokens", "text_tokens", "rounds"}
HALVES = {"residual", "kept", "y_and_b", "cache", "frames_in", "maps"}
BYTES = {"sound"}
# Of the denoiser: bfloat16, except their tables.
BLOCKS = {"_add_and_norm", "_norm_and_rotate", "_norm_heads_and_rotate"}


def type_of(kernel_name, name):
    if name in NUMBERS:
        return "i32"
    if name in ("epsilon", "root"):
        return "fp32"
    if name in BYTES or (kernel_name, name) == ("_to_yuv", "out"):
        return "*u8"
    if kernel_name in BLOCKS:
        return "*fp32" if name in ("gate_table", "table", "cosines", "sines") else "*bf16"
    if kernel_name in ("_activate", "_add", "_sums"):
        is_half = name in ("source", "values", "other") or (kernel_name, name) == ("_activate", "out")
        return "*fp16" if is_half else "*fp32"
    if kernel_name in ("_to_points", "_to_frames"):
        return "*fp16"
    halves = name[:-1] in ("map", "in") or name in HALVES or (kernel_name, name) == ("_softmax", "out")
    return "*fp16" if halves else "*fp32"


for capability, module, kernel_name, warps, constants in json.loads(sys.argv[1]):
    kernel = getattr(import_module(f"filmgate.pipeline.{module}"), kernel_name)
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else type_of(kernel_name, name) for name in names}
    constexprs = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs)
    built = compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    print(capability, kernel_name, len(built.asm["cubin"]))
"""
FAST, GROUPS, COLOURS = "decode.fast.kernels", "decode.fast.group_kernels", "transfer.colour_kernel"
DENOISER, ACTIVATION = "denoise.fused.kernels", "decode.fast.activation_kernels"
CONV3D = "decode.fast.conv3d_kernels"
COMBINE = {"has_bias": True, "has_residual": True, "keep": True, "has_norm": True, "has_cache": True}
WIDE = {"channels": 96, "lanes": 128, "pixels": 16}
NARROW = {"channels": 384, "lanes": 512, "pixels": 2}
TO_FRAMES = {"has_bias": True, "has_residual": True, "channels": 128, "groups": 32, "pixels": 16, "rounds": 4}
UPSAMPLED = TO_FRAMES | {"has_residual": False}
NORMALISE = {"has_cache": True, "channels": 128, "pixels": 16}
MODULATED = {"gate_vectors": 6, "gate": 5, "vectors": 6, "shift": 0, "scale": 1, "has_affine": False}
MODULATED |= {"kind": 1, "has_table": True, "has_text": False}
AFFINE = MODULATED | {"gate": -1, "shift": -1, "scale": -1, "has_affine": True}
WITH_TEXT = MODULATED | {"gate": 2, "has_affine": True, "has_table": False, "has_text": True}
BORDERED = {"before": 2, "side": 1, "has_bias": True, "has_affine": True, "is_active": True}
KERNELS = [
    (FAST, "_combine", 8, COMBINE | {"frames": 4, "output_layout": 1, "input_layout": 2, **WIDE}),
    (FAST, "_combine", 2, COMBINE | {"frames": 1, "output_layout": 2, "input_layout": 1, **NARROW}),
    (FAST, "_add_taps", 4, {"frames": 4, "channels": 3, "width": 16, "pixels": 256}),
    (FAST, "_softmax", 16, {"lanes": 16384}),
    (GROUPS, "_to_frames_and_sums", 4, TO_FRAMES | {"frames": 4, "repeats": 1, "output_layout": 1}),
    (GROUPS, "_to_frames_and_sums", 4, UPSAMPLED | {"frames": 2, "repeats": 2, "output_layout": 2}),
    (GROUPS, "_scale_and_shift", 8, {"groups": 32, "channels": 512, "block": 4096}),
    (GROUPS, "_normalise", 4, NORMALISE | {"frames": 4, "latents": 2, "layout": 2, "is_start": False}),
    (GROUPS, "_normalise", 4, NORMALISE | {"frames": 1, "latents": 1, "layout": 0, "is_start": True}),
    (ACTIVATION, "_activate", 4, BORDERED | {"has_norm": False, "pixels": 4, "lanes": 512}),
    (ACTIVATION, "_add", 4, {"has_bias": True, "has_other": True, "block": 2048}),
    (ACTIVATION, "_sums", 4, {"rows": 4, "lanes": 512}),
    (CONV3D, "_to_points", 2, {"values": 512}),
    (CONV3D, "_to_frames", 2, {"values": 512}),
    (COLOURS, "_to_yuv", 4, {"columns": 512}),
    (DENOISER, "_add_and_norm", 2, MODULATED | {"has_branch": True, "rows": 4, "lanes": 2048}),
    (DENOISER, "_add_and_norm", 2, MODULATED | {"kind": 2, "has_branch": True, "rows": 1, "lanes": 2048}),
    (DENOISER, "_add_and_norm", 4, WITH_TEXT | {"has_branch": True, "rows": 2, "lanes": 4096}),
    (DENOISER, "_add_and_norm", 16, AFFINE | {"has_branch": False, "rows": 1, "lanes": 8192}),
    (DENOISER, "_norm_and_rotate", 4, {"has_key": True, "has_rotation": True, "pairs": 64, "lanes": 2048}),
    (DENOISER, "_norm_heads_and_rotate", 8, {"has_rotation": True, "heads": 48, "size": 64, "lanes": 64}),
]  # fmt: skip


# Every variant for Hopper, every kernel once for A100, L40S and G7e.
ONCE = list({kernel[1]: kernel for kernel in KERNELS}.values())
CASES = [(90, *kernel) for kernel in KERNELS] + [(arch, *kernel) for arch in (80, 89, 120) for kernel in ONCE]


def test_the_kernels_compile_for_every_generation(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE, json.dumps(CASES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    built = [line.split() for line in done.stdout.splitlines()]
    assert [(int(arch), name) for arch, name, _ in built] == [(arch, name) for arch, _, name, *_ in CASES]
    assert all(int(size) > 0 for *_, size in built)
