"""Priors of the fitted constants: logarithms of shares of a peak or of seconds, or plain exponents."""

from math import log

from filmgate.planner.validation.fit import Prior

VIDEO_PRIORS = {
    # Shares of the dense peak at REFERENCE_DENSITY. Large matrix products reach two thirds or more.
    "linear": Prior(log(0.72), 0.25),
    "attention": Prior(log(0.65), 0.25),
    "gamma": Prior(0.2, 0.1),
    # FlashAttention 2 uses Ampere instructions; on Hopper they reach about 60 % of the native rate.
    "flash2_on_hopper": Prior(log(0.6), 0.2),
    "small_head": Prior(log(0.75), 0.2),
    "convolution": Prior(log(0.55), 0.3),
    # Shares of the bandwidth. The strided casts and pads of a decoder reach much less than streaming reads.
    "bandwidth": Prior(log(0.8), 0.15),
    "decode_bandwidth": Prior(log(0.36), 0.3),
    # Values per second: 32 blocks of 512 threads with one or two loads in flight, 0.6 us each.
    "group_norm": Prior(log(4e10), 0.5),
    # Share of the eager traffic that remains when operators are fused by hand or by a compiler.
    "traffic.fused": Prior(log(0.5), 0.3),
    "traffic.compiled": Prior(log(0.4), 0.3),
    "nvlink": Prior(log(0.6), 0.4),
    "pcie": Prior(log(0.35), 0.4),
    "straggle": Prior(log(0.015), 0.5),
    "generation.ampere": Prior(0.0, 0.15),
    "generation.ada": Prior(0.0, 0.15),
    "generation.hopper": Prior(0.0, 0.15),
    "generation.blackwell": Prior(0.0, 0.15),
}

ENGINES = ("vllm", "vllm-0.6", "vllm-burst", "tensorrt-llm-0.5", "tensorrt-llm-1", "nim")

LLM_PRIORS = {
    "llm.bandwidth": Prior(log(0.8), 0.1),
    "llm.linear": Prior(log(0.85), 0.2),
    "llm.attention": Prior(log(0.5), 0.3),
    "llm.overlap": Prior(0.8, 0.7),
    "llm.dequantise": Prior(log(0.7), 0.3),
    "llm.experts": Prior(log(0.6), 0.3),
    "llm.link": Prior(log(0.6), 0.3),
    "llm.sync": Prior(log(12e-6), 0.4),
    "llm.sync_pcie": Prior(log(30e-6), 0.4),
    # An engine starts a step in a few milliseconds and takes about a microsecond per sequence and layer.
    **{f"{engine}.step": Prior(log(2.5e-3), 0.4) for engine in ENGINES},
    **{f"{engine}.sequence": Prior(log(1e-6), 1.0) for engine in ENGINES},
}
