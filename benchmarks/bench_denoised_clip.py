"""A whole clip: how far fused and compiled blocks move it.

Rounding differences of single passes add up over the steps. Every variant denoises the same noise with the
same prompt; the latents are compared with those of eager blocks and of float32. A full-size denoiser has
random weights and needs a GPU. Flipbook, which is trained, runs on the CPU in float32: there are no fused
kernels for a CPU, so only its compiled blocks are compared.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.denoisers import build_denoiser, check_shape, recipe_of
from benchmarks.report import JsonFlag, print_report, run
from filmgate.errors import DeviceError, UsageError
from filmgate.jobs import Size
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise.acceleration import CompiledBlocks
from filmgate.pipeline.denoise.attention import choose_attention, torch_attention
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.requests import ClipRequest
from filmgate.settings import PipelineSettings, load_settings

Shape = tuple[int, ...]


def main(
    model: Annotated[
        str, typer.Option(help="A full-size denoiser with random weights, or flipbook.")
    ] = "wan2.1-1.3b",
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT.")] = "480x272",
    frames: Annotated[int, typer.Option(help="Length of the clip.")] = 33,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps, one pass each.")] = 20,
    is_json: JsonFlag = False,
) -> None:
    """Denoise one clip with every variant and print the PSNR of its latents."""
    about: dict[str, object] = {"model": model, "size": size, "frames": frames, "steps": steps}
    if model == "flipbook":
        clips, device = denoise_flipbook(Size.parse(size), frames, steps), "CPU"
    else:
        clips, device = denoise_all(*_shape_of(model, size, frames), steps), torch.cuda.get_device_name()
    results = {
        name: {
            f"decibels_to_{other}": psnr(clip, clips[other])
            for other in ("eager", "float32")
            if other != name and other in clips
        }
        for name, clip in clips.items()
        if name != "float32"
    }
    about |= {"device": device, "torch": torch.__version__}
    print_report("denoised_clip", about, results, {}, is_json=is_json)


def _shape_of(model: str, size: str, frames: int) -> tuple[str, Shape, int]:
    """The model, the shape of its latents, and the width of its text."""
    if not torch.cuda.is_available() or load_settings().pipeline.device == "cpu":
        raise DeviceError(f"{model} needs a GPU; use --model flipbook without one")
    width, height = Size.parse(size)
    check_shape(model, (width, height), frames)
    recipe = recipe_of(model)
    if recipe.family.name != "wan":
        raise UsageError("this benchmark runs Wan alone", option="--model")
    length = (frames - 1) // recipe.temporal + 1
    shape = (1, recipe.channels, length, height // recipe.spatial, width // recipe.spatial)
    return model, shape, recipe.text_encoder["d_model"]


def denoise_flipbook(size: Size, frames: int, steps: int) -> dict[str, Tensor]:
    """The latents of eager and compiled blocks, on the CPU."""
    eager = PipelineSettings(device="cpu", compile="off")
    clips, prompt = {}, "a red ball bounces on the grass"
    for name, settings in (("eager", eager), ("compiled", eager.model_copy(update={"compile": "on"}))):
        model = load_model("flipbook", settings)
        request = ClipRequest(prompt, size.width, size.height, frames, 16, steps, seed=1, guidance=1.0)
        renderer = Renderer(model, settings)
        clips[name] = renderer.denoise(request, Control()).latents
    return clips


def denoise_all(model: str, shape: Shape, text_width: int, steps: int) -> dict[str, Tensor]:
    """The latents of every variant, by name."""
    from filmgate.pipeline.denoise.fused.wan import FusedWan

    network = build_denoiser(model, torch.device("cuda"), torch.bfloat16)
    denoise = _clip(shape, text_width, steps)
    clips = {"eager": denoise(network)}
    compiler = CompiledBlocks([network])
    compiler.switch_on()
    clips["compiled"] = denoise(network)
    compiler.switch_off()
    for name, attention in (("fused", choose_attention(network)), ("fused_torch", torch_attention)):
        fused = FusedWan(network, attention)
        fused.switch_on()
        clips[name] = denoise(network)
        fused.switch_off()
    clips["float32"] = denoise(deepcopy(network).float())
    return clips


def _clip(shape: Shape, text_width: int, steps: int) -> Callable[[Any], Tensor]:
    draw = torch.Generator().manual_seed(1)
    noise = torch.randn(shape, generator=draw).cuda()
    text = torch.randn(1, 512, text_width, generator=draw).cuda()

    @torch.inference_mode()
    def denoise(network: Any) -> Tensor:
        from diffusers import UniPCMultistepScheduler

        scheduler = UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        )
        scheduler.set_timesteps(steps, device="cuda")
        latents, dtype = noise, network.proj_out.weight.dtype
        prompt = text.to(dtype)
        for time in scheduler.timesteps:
            direction = network(latents.to(dtype), time.expand(1), prompt, return_dict=False)[0]
            latents = scheduler.step(direction.float(), time, latents, return_dict=False)[0]
        return latents

    return denoise


def psnr(clip: Tensor, reference: Tensor) -> float:
    """In decibels; the peak is the range of the reference."""
    error = float(((clip.double() - reference.double()) ** 2).mean())
    peak = float(reference.max() - reference.min())
    return round(10 * torch.log10(torch.tensor(peak**2 / error)).item(), 1) if error else float("inf")


if __name__ == "__main__":
    run(main)
