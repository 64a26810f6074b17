"""A whole clip of a full-size denoiser with random weights: how far fused and compiled blocks move it.

Rounding differences of single passes add up over the steps. Every variant denoises the same noise with the
same prompt; the latents are compared with those of eager blocks and of float32.
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
from filmgate.pipeline.denoise.attention import choose_attention, torch_attention
from filmgate.pipeline.loading.compilation import BlockCompiler
from filmgate.settings import load_settings

Shape = tuple[int, ...]


def main(
    model: Annotated[str, typer.Option(help="A full-size denoiser with random weights.")] = "wan2.1-1.3b",
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT.")] = "480x272",
    frames: Annotated[int, typer.Option(help="Length of the clip.")] = 33,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps, one pass each.")] = 20,
    is_json: JsonFlag = False,
) -> None:
    """Denoise one clip with every variant and print the PSNR of its latents."""
    if not torch.cuda.is_available() or load_settings().pipeline.device == "cpu":
        raise DeviceError("this benchmark needs a GPU")
    width, height = Size.parse(size)
    check_shape(model, (width, height), frames)
    recipe = recipe_of(model)
    if recipe.family.name != "wan":
        raise UsageError("this benchmark runs Wan alone", option="--model")
    length = (frames - 1) // recipe.temporal + 1
    shape = (1, recipe.channels, length, height // recipe.spatial, width // recipe.spatial)
    clips = denoise_all(model, shape, recipe.text_encoder["d_model"], steps)
    results = {
        name: {
            f"decibels_to_{other}": psnr(clip, clips[other])
            for other in ("eager", "float32")
            if other != name
        }
        for name, clip in clips.items()
        if name != "float32"
    }
    about = {"model": model, "size": size, "frames": frames, "steps": steps}
    about |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print_report("denoised_clip", about, results, {}, is_json=is_json)


def denoise_all(model: str, shape: Shape, text_width: int, steps: int) -> dict[str, Tensor]:
    """The latents of every variant, by name."""
    from filmgate.pipeline.denoise.fused.wan import FusedWan

    network = build_denoiser(model, torch.device("cuda"), torch.bfloat16)
    denoise = _clip(shape, text_width, steps)
    clips = {"eager": denoise(network)}
    compiler = BlockCompiler([network])
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
