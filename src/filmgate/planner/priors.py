"""Where each constant is expected before any run is seen: share of a peak, seconds, or a plain exponent."""

from math import log

from filmgate.planner.calibration import Prior

VIDEO_PRIORS = {
    # Shares of the dense peak at REFERENCE_DENSITY; large matrix products reach two thirds and more.
    "linear": Prior(log(0.72), 0.25),
    "attention": Prior(log(0.65), 0.25),
    "gamma": Prior(0.2, 0.1),
    # FlashAttention 2 issues Ampere's instructions, which Hopper runs at about 60 % of its own.
    "flash2_on_hopper": Prior(log(0.6), 0.2),
    "small_head": Prior(log(0.75), 0.2),
    "convolution": Prior(log(0.55), 0.3),
    # Shares of the bandwidth; a decoder's strided casts and pads reach far less than a streaming kernel.
    "bandwidth": Prior(log(0.8), 0.15),
    "decode_bandwidth": Prior(log(0.36), 0.3),
    # Values a second: 32 blocks of 512 threads with one or two loads under way, 0.6 us each.
    "group_norm": Prior(log(4e10), 0.5),
    # Share of the eager traffic that is left once operators are fused by hand or by a compiler.
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
    "llm.meeting": Prior(log(12e-6), 0.4),
    "llm.meeting_pcie": Prior(log(30e-6), 0.4),
    # An engine launches a step in a few milliseconds and spends about a microsecond a sequence and layer.
    **{f"{engine}.step": Prior(log(2.5e-3), 0.4) for engine in ENGINES},
    **{f"{engine}.sequence": Prior(log(1e-6), 1.0) for engine in ENGINES},
}
