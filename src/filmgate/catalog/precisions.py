"""Number formats of weights and caches, with the bits that one value takes, scales included."""

BITS_PER_VALUE = {
    "fp32": 32.0,
    "bf16": 16.0,
    "fp16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "mxfp4": 4.25,
    "fp4": 4.5,
    "int4": 4.5,
}


def bytes_per_value(precision: str) -> float:
    return BITS_PER_VALUE[precision] / 8
