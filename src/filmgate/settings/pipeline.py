"""The settings of the frame pipeline."""

from typing import Literal

from pydantic import Field

from filmgate.settings.sections import Section


class PipelineSettings(Section):
    """The frame pipeline."""

    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="auto: bfloat16 on a GPU, float32 on a CPU"
    )
    weights: Literal["full", "int8", "fp8"] = Field(
        default="full",
        description="precision of the denoiser's weights in memory; int8 and fp8 take half of bfloat16",
    )
    offload: Literal["auto", "none", "model", "layers"] = Field(
        default="auto",
        description="what is moved off the GPU while it is not used; auto decides by free memory",
    )
    compile: Literal["auto", "off", "on"] = Field(
        default="auto",
        description="compile transformer blocks; auto: in workers on CUDA, for models where it was measured",
    )
    kernels: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: Filmgate's denoiser kernels if they pass a self-test and are faster; off: never",
    )
    compile_cache: str = Field(
        default="",
        description="folder for compiled kernels; if empty, the default folders of torch and Triton",
    )
    text_cache_bytes: int = Field(
        default=256 << 20, ge=0, description="host memory for cached prompt embeddings; 0 disables the cache"
    )
    decoder: Literal["auto", "exact", "fast"] = Field(
        default="auto",
        description="exact: the VAE's own layers; fast: Filmgate's kernels; auto: the faster one, timed once",
    )
    codec: Literal["h264", "hevc", "av1"] = Field(
        default="h264", description="video codec of the finished file"
    )
    encoder: Literal["auto", "software", "nvenc"] = Field(
        default="auto", description="auto: NVENC if it can encode a test frame of the size, else software"
    )
    pixel_format: Literal["yuv420p", "yuv420p10", "yuv422p", "yuv422p10"] = Field(
        default="yuv420p",
        description="chroma subsampling and bit depth of the file; browsers play only yuv420p",
    )
    preset: Literal[
        "ultrafast",
        "superfast",
        "veryfast",
        "faster",
        "fast",
        "medium",
        "slow",
        "slower",
        "veryslow",
        "placebo",
    ] = Field(default="veryfast", description="preset of the software encoders: speed against bytes")
    encoder_threads: int = Field(
        default=8,
        ge=1,
        le=128,
        description="maximum threads of the software encoders; never more than there are cores",
    )
    crf: int = Field(
        default=18, ge=0, le=51, description="constant quality; lower values are better and larger"
    )
    device_slots: int = Field(default=2, ge=2, le=16, description="chunks in the device ring")
    host_slots: int = Field(default=8, ge=2, le=64, description="chunks in the page-locked host ring")
