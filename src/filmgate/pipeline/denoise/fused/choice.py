"""Whether a model's denoiser runs on fused kernels: decided at the first clip, on the GPU that it uses."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from filmgate.pipeline.denoise.attention import choose_attention
from filmgate.pipeline.loading.compilation import find_missing_tool
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.loading.memory import Offload
from filmgate.pipeline.trials import Trial, network_key, time_both, wins_trial
from filmgate.settings import PipelineSettings
from filmgate.telemetry.logs import Log

log = Log("denoise")
T = TypeVar("T")

HALVES = (torch.bfloat16, torch.float16)
MIN_CAPABILITY = (8, 0)
TEST_LATENTS = (2, 12, 20)  # frames, rows and columns: 120 tokens, no multiple of a tile
TRIAL_LATENTS = (5, 32, 52)  # 2,080 tokens
MAX_ERROR = 0.05  # relative norm; two ways to round bfloat16 differ by 0.015 after 30 blocks


class FusedDenoiser:
    """Runs a clip on fused kernels if they are supported, exact and faster here, else as `otherwise` does.

    The first clip decides. A failure later, such as a compiler that runs out of disk, is logged, and this
    clip and all later ones run otherwise.
    """

    def __init__(self, model: VideoModel, settings: PipelineSettings) -> None:
        self._model = model
        self._networks: list[Any] | None = None if is_supported(model, settings) else []

    @property
    def is_on(self) -> bool:
        """Whether clips run fused, as far as that is decided."""
        return bool(self._networks)

    def run(self, work: Callable[[], T], otherwise: Callable[[], T]) -> T:
        if self._networks is None:
            self._networks = _open_proven(self._model)
        if not self._networks or any(network.has_hooks for network in self._networks):
            return otherwise()
        try:
            for network in self._networks:
                network.switch_on()
            return work()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, OSError, ImportError) as exc:
            log.warning("the fused kernels failed; the denoiser runs without them", error=exc)
        finally:
            for network in self._networks:
                network.switch_off()
        self._networks = []
        return otherwise()


def is_supported(model: VideoModel, settings: PipelineSettings) -> bool:
    """Whether fused kernels may work here. Offloading replaces the forward passes itself."""
    device = model.placement.device
    return (
        settings.kernels == "auto"
        and settings.compile != "on"
        and model.family.has_fused_blocks
        and model.placement.offload is Offload.NONE
        and model.placement.dtype in HALVES
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
        and find_missing_tool() is None
    )


def _open_proven(model: VideoModel) -> list[Any]:
    try:
        networks = open_fused(model)
        return networks if is_exact(networks) and _is_faster(model, networks[0]) else []
    except torch.OutOfMemoryError:
        log.warning("not enough GPU memory to try the fused kernels; the denoiser runs without them")
    except Exception as exc:  # noqa: BLE001 - Triton and its C compiler fail in many ways
        log.warning("the fused kernels cannot be built; the denoiser runs without them", error=exc)
    return []


def open_fused(model: VideoModel) -> list[Any]:
    """Every denoiser of the model with fused kernels, or none if one of them has no such form."""
    networks = []
    for network in model.family.denoisers_of(model.pipe):
        fused = model.family.fuse(network, choose_attention(network))
        if fused is None:
            return []
        networks.append(fused)
    return networks


@torch.inference_mode()
def is_exact(networks: list[Any]) -> bool:
    """Whether short passes with the model's own weights give what they give without fused kernels.

    The kernels depend on the width of the model, not on the size of the clip.
    """
    return bool(networks) and all(
        _error(network, inputs) <= MAX_ERROR
        for network in networks
        for inputs in network.examples(TEST_LATENTS)
    )


def _error(network: Any, inputs: dict[str, Any]) -> float:
    exact = network.run(inputs).float()
    network.switch_on()
    try:
        fused = network.run(inputs).float()
    finally:
        network.switch_off()
    error = float((fused - exact).norm() / exact.norm())
    if not error <= MAX_ERROR:
        logged = round(error, 4) if math.isfinite(error) else None
        log.warning(
            "the fused kernels failed their self-test; the denoiser runs without them", relative_error=logged
        )
    return error


def _is_faster(model: VideoModel, network: Any) -> bool:
    device, dtype = model.placement.device, model.placement.dtype
    key = network_key("blocks", model.family.name, network.config, dtype, device)
    return wins_trial(key, lambda: _run_trial(network, device))


@torch.inference_mode()
def _run_trial(network: Any, device: torch.device) -> Trial:
    inputs = network.examples(TRIAL_LATENTS)[0]

    def run_fused() -> None:
        network.switch_on()
        network.run(inputs)
        network.switch_off()

    return time_both(run_fused, lambda: network.run(inputs), device)
