"""Finds the fastest way to run the decoder on this machine.

A child process measures the variants during training. The code it compiles stays in the compiler's cache,
where the parent finds it.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d
from torch import Tensor

from training.flipbook.clip_buffer import DecoderBatch, to_unit
from training.flipbook.clip_formats import latent_grid
from training.flipbook.renderer import Format
from training.flipbook.time_box import TimeBox
from training.flipbook.train_vae import reconstruction_loss
from training.flipbook.training_run import TrainingRun
from training.flipbook.whole_clip import decode_latents, use_channels_last

EDGE_WEIGHT = 0.5
MIN_ERROR = 1e-6  # 66 dB: a smaller error brings no further gain
TIMED_STEPS = 8


def compute_loss(vae: AutoencoderKLWan, latents: Tensor, frames: Tensor, psnr_weight: Tensor) -> Tensor:
    """The reconstruction loss (`psnr_weight` 0) to the log of each clip's squared error, its PSNR (1)."""
    output, target = decode_latents(vae, latents).float(), to_unit(frames)
    squared = (output - target).square().flatten(1).mean(1)
    reconstruction = reconstruction_loss(output, target, EDGE_WEIGHT)
    return torch.lerp(reconstruction, 0.1 * torch.log(squared + MIN_ERROR).mean(), psnr_weight)


class FoldedConv(WanCausalConv3d):
    """A causal 3 x 3 x 3 convolution as a two-dimensional one over three frames stacked in the channels.

    Libraries have better tuned kernels for two-dimensional convolutions.
    """

    def forward(self, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        assert cache_x is None, "supports whole clips only"
        clips, _, frames, _, _ = x.shape
        x = F.pad(x, (0, 0, 0, 0, 2, 0)).transpose(1, 2)
        x = torch.cat([x[:, shift : shift + frames] for shift in range(3)], dim=2).flatten(0, 1)
        weight = self.weight.transpose(1, 2).flatten(1, 2).to(memory_format=torch.channels_last)
        y = F.conv2d(x.to(memory_format=torch.channels_last), weight, self.bias, padding=1)
        return y.unflatten(0, (clips, frames)).transpose(1, 2)


def fold_convolutions(vae: AutoencoderKLWan, *, is_folded: bool) -> None:
    """Change how the decoder applies its 3 x 3 x 3 convolutions. The weights are not changed."""
    for module in vae.decoder.modules():
        if isinstance(module, WanCausalConv3d) and module.kernel_size == (3, 3, 3):
            module.__class__ = FoldedConv if is_folded else WanCausalConv3d


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the decoder."""

    is_compiled: bool = False
    is_folded: bool = False

    @property
    def name(self) -> str:
        return f"{'compiled' if self.is_compiled else 'eager'}{' folded' if self.is_folded else ''}"

    def prepare(self, vae: AutoencoderKLWan) -> Callable[..., Tensor]:
        """`compute_loss` with this variant of the decoder."""
        fold_convolutions(vae, is_folded=self.is_folded)
        return torch.compile(compute_loss, dynamic=False) if self.is_compiled else compute_loss


# The most promising first, because time may run out.
_ALL = (Variant(), Variant(is_compiled=True), Variant(True, True), Variant(is_folded=True))
VARIANTS = {variant.name: variant for variant in _ALL}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of one training batch."""

    batch: int
    size: Format

    @property
    def name(self) -> str:
        return f"{self.batch}x{self.size.frames}x{self.size.height}x{self.size.width}"

    @classmethod
    def parse(cls, text: str) -> "Shape":
        batch, frames, height, width = map(int, text.split("x"))
        return cls(batch, Format(width, height, frames))

    def random_batch(self, vae: AutoencoderKLWan) -> DecoderBatch:
        device = next(vae.parameters()).device
        latents = torch.randn(self.batch, vae.config.z_dim, *latent_grid(self.size), device=device)
        extent = (self.batch, 3, self.size.frames, self.size.height, self.size.width)
        return DecoderBatch(latents, torch.randint(256, extent, dtype=torch.uint8, device=device))


def load_trainable_vae(folder: Path, device: torch.device) -> tuple[AutoencoderKLWan, list[Tensor]]:
    """The VAE of a model folder with everything frozen except its decoder, and the decoder's weights."""
    vae = (
        AutoencoderKLWan.from_pretrained(folder / "vae", dtype=torch.float32).to(device).requires_grad_(False)
    )
    use_channels_last(vae)
    trainable = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
    for weight in trainable:
        weight.requires_grad_(True)
    return vae, trainable


def time_variant(run: TrainingRun, vae: AutoencoderKLWan, variant: Variant, shape: Shape) -> float:
    """Milliseconds per step, forward and backward, after a warm-up."""
    loss_function, batch = variant.prepare(vae), shape.random_batch(vae)
    psnr_weight = torch.zeros((), device=run.device)

    def step() -> None:
        with run.autocast():
            loss = loss_function(vae, batch.latents, batch.frames, psnr_weight)
        loss.backward()
        vae.zero_grad(set_to_none=True)

    for _ in range(2):
        step()
    run.synchronize()
    box = TimeBox(1)
    for _ in range(TIMED_STEPS):
        step()
    run.synchronize()
    return 1000 * box.elapsed / TIMED_STEPS


@dataclass(slots=True)
class VariantBenchmark:
    """The child process that measures the variants, and its results so far."""

    command: Sequence[str]
    report: Path
    limit_seconds: float
    child: subprocess.Popen[bytes] = field(init=False)
    box: TimeBox = field(init=False)

    def __post_init__(self) -> None:
        self.report.unlink(missing_ok=True)
        self.child = subprocess.Popen(self.command)
        self.box = TimeBox(self.limit_seconds)

    @classmethod
    def start(
        cls, model: Path, shapes: Sequence[Shape], report: Path, limit_seconds: float
    ) -> "VariantBenchmark":
        command = [sys.executable, "-m", "training.flipbook.decoder_variants", "--model", str(model)]
        return cls([*command, "--out", str(report), *(shape.name for shape in shapes)], report, limit_seconds)

    def choose(self) -> Variant | None:
        """The fastest variant; None while the child is running and has time left."""
        if self.child.poll() is None and not self.box.is_over:
            return None
        self.stop()
        timings = read_timings(self.report)
        return VARIANTS[min(timings, key=timings.__getitem__)] if timings else Variant()

    def stop(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()


def read_timings(report: Path) -> dict[str, float]:
    """Milliseconds per step of each variant that ran."""
    return json.loads(report.read_text()) if report.exists() else {}


def benchmark_variants(
    run: TrainingRun, model: Path, shapes: Sequence[Shape], out: Path, variants: Sequence[Variant]
) -> None:
    """Time every variant at the first shape, and write each result at once.

    The fastest variant then runs at the other shapes, so its compiled code is in the cache.
    """
    first, *others = shapes
    timings: dict[str, float] = {}
    for variant in variants:
        if (milliseconds := _time_or_none(run, model, variant, first)) is not None:
            timings[variant.name] = milliseconds
            part = out.with_suffix(".part")
            part.write_text(json.dumps(timings))
            part.replace(out)
    for shape in others if timings else ():
        _time_or_none(run, model, VARIANTS[min(timings, key=timings.__getitem__)], shape)


def _time_or_none(run: TrainingRun, model: Path, variant: Variant, shape: Shape) -> float | None:
    vae, _ = load_trainable_vae(model, run.device)
    try:
        milliseconds = time_variant(run, vae, variant, shape)
    except Exception as error:  # noqa: BLE001 - compilers raise many errors; the other variants remain
        print(f"{variant.name} does not run at {shape.name}: {error!r:.300}", file=sys.stderr, flush=True)
        return None
    run.log("variants", variant=variant.name, shape=shape.name, milliseconds=milliseconds)
    return milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="+", type=Shape.parse, help="batch x frames x height x width")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    options = parser.parse_args()
    run = TrainingRun.open(options.out.parent)
    benchmark_variants(
        run, options.model, options.shapes, options.out, [VARIANTS[name] for name in options.variants]
    )


if __name__ == "__main__":
    main()
