"""The result of `filmgate.pipeline.bench.alone`, for processes without torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alone:
    """The median seconds of one kind of clip. `gpu_uuid` is empty on a CPU."""

    device: str
    gpu_uuid: str
    size: str
    frames: int
    fps: int
    steps: int
    guidance: float
    quality: str
    denoise_seconds: float
    decode_seconds: float

    @property
    def seconds(self) -> float:
        return self.denoise_seconds + self.decode_seconds
