"""Which way of running the decoder is quickest on this machine? A child process tries them while training
goes on, and what it compiles lies in the cache when the parent asks for it.
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

from training.flipbook.clip_formats import latent_grid
from training.flipbook.reel import Lesson, to_unit
from training.flipbook.renderer import Format
from training.flipbook.time_box import TimeBox
from training.flipbook.train_vae import weigh_reconstruction
from training.flipbook.whole_clip import decode_latents, use_channels_last
from training.flipbook.workshop import Workshop

EDGE_WEIGHT = 0.5
LEAST_ERROR = 1e-6  # 66 dB below white: beyond it there is nothing to gain
TRIALS = 8


def find_loss(vae: AutoencoderKLWan, latents: Tensor, frames: Tensor, decibels: Tensor) -> Tensor:
    """Crisp edges where `decibels` is 0; at 1 the logarithm of each clip's squared error: its PSNR."""
    output, target = decode_latents(vae, latents).float(), to_unit(frames)
    squared = (output - target).square().flatten(1).mean(1)
    crisp = weigh_reconstruction(output, target, EDGE_WEIGHT)
    return torch.lerp(crisp, 0.1 * torch.log(squared + LEAST_ERROR).mean(), decibels)


class FoldedConv(WanCausalConv3d):
    """The same causal 3 x 3 x 3 convolution as a flat one: three frames side by side in the channels. Flat
    kernels are the better kept ones.
    """

    def forward(self, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        assert cache_x is None, "whole clips only"
        clips, _, frames, _, _ = x.shape
        x = F.pad(x, (0, 0, 0, 0, 2, 0)).transpose(1, 2)
        x = torch.cat([x[:, late : late + frames] for late in range(3)], dim=2).flatten(0, 1)
        weight = self.weight.transpose(1, 2).flatten(1, 2).to(memory_format=torch.channels_last)
        y = F.conv2d(x.to(memory_format=torch.channels_last), weight, self.bias, padding=1)
        return y.unflatten(0, (clips, frames)).transpose(1, 2)


def fold_convolutions(vae: AutoencoderKLWan, *, is_folded: bool) -> None:
    """The weights stay where they are; only the way they are applied changes."""
    for module in vae.decoder.modules():
        if isinstance(module, WanCausalConv3d) and module.kernel_size == (3, 3, 3):
            module.__class__ = FoldedConv if is_folded else WanCausalConv3d


@dataclass(frozen=True, slots=True)
class Way:
    """One way of running the decoder."""

    is_compiled: bool = False
    is_folded: bool = False

    @property
    def name(self) -> str:
        return f"{'compiled' if self.is_compiled else 'eager'}{' folded' if self.is_folded else ''}"

    def prepare(self, vae: AutoencoderKLWan) -> Callable[..., Tensor]:
        """`find_loss`, this way."""
        fold_convolutions(vae, is_folded=self.is_folded)
        return torch.compile(find_loss, dynamic=False) if self.is_compiled else find_loss


# The likeliest winners first, should time run out.
WAYS = {way.name: way for way in (Way(), Way(is_compiled=True), Way(True, True), Way(is_folded=True))}


@dataclass(frozen=True, slots=True)
class Shape:
    """What one step is run on."""

    batch: int
    size: Format

    @property
    def name(self) -> str:
        return f"{self.batch}x{self.size.frames}x{self.size.height}x{self.size.width}"

    @classmethod
    def parse(cls, text: str) -> "Shape":
        batch, frames, height, width = map(int, text.split("x"))
        return cls(batch, Format(width, height, frames))

    def invent(self, vae: AutoencoderKLWan) -> Lesson:
        device = next(vae.parameters()).device
        latents = torch.randn(self.batch, vae.config.z_dim, *latent_grid(self.size), device=device)
        extent = (self.batch, 3, self.size.frames, self.size.height, self.size.width)
        return Lesson(latents, torch.randint(256, extent, dtype=torch.uint8, device=device))


def load_learner(folder: Path, device: torch.device) -> tuple[AutoencoderKLWan, list[Tensor]]:
    """The VAE of a model folder with all but its decoder frozen, and the weights that are not."""
    vae = (
        AutoencoderKLWan.from_pretrained(folder / "vae", dtype=torch.float32).to(device).requires_grad_(False)
    )
    use_channels_last(vae)
    learning = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
    for weight in learning:
        weight.requires_grad_(True)
    return vae, learning


def time_way(workshop: Workshop, vae: AutoencoderKLWan, way: Way, shape: Shape) -> float:
    """Milliseconds a step, forward and backward, once everything is tuned and compiled."""
    run, lesson = way.prepare(vae), shape.invent(vae)
    decibels = torch.zeros((), device=workshop.device)

    def step() -> None:
        with workshop.autocast():
            loss = run(vae, lesson.latents, lesson.frames, decibels)
        loss.backward()
        vae.zero_grad(set_to_none=True)

    for _ in range(2):
        step()
    workshop.synchronize()
    box = TimeBox(1)
    for _ in range(TRIALS):
        step()
    workshop.synchronize()
    return 1000 * box.elapsed / TRIALS


@dataclass(slots=True)
class Tryout:
    """The child process that tries the ways, and what it has found so far."""

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
    def start(cls, model: Path, shapes: Sequence[Shape], report: Path, limit_seconds: float) -> "Tryout":
        words = [sys.executable, "-m", "training.flipbook.kernels", "--model", str(model)]
        return cls([*words, "--out", str(report), *(shape.name for shape in shapes)], report, limit_seconds)

    def choose(self) -> Way | None:
        """The quickest way; None as long as the child is busy and its time is not up."""
        if self.child.poll() is None and not self.box.is_over:
            return None
        self.stop()
        found = read_findings(self.report)
        return WAYS[min(found, key=found.__getitem__)] if found else Way()

    def stop(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()


def read_findings(report: Path) -> dict[str, float]:
    """Milliseconds a step in each way that ran."""
    return json.loads(report.read_text()) if report.exists() else {}


def try_all(workshop: Workshop, model: Path, shapes: Sequence[Shape], out: Path, ways: Sequence[Way]) -> None:
    """Every way at the first shape, each written down as soon as it is known. The others run once in the
    quickest way, to have it compiled.
    """
    first, *others = shapes
    found: dict[str, float] = {}
    for way in ways:
        if (milliseconds := _try(workshop, model, way, first)) is not None:
            found[way.name] = milliseconds
            part = out.with_suffix(".part")
            part.write_text(json.dumps(found))
            part.replace(out)
    for shape in others:
        _try(workshop, model, WAYS[min(found, key=found.__getitem__)], shape)


def _try(workshop: Workshop, model: Path, way: Way, shape: Shape) -> float | None:
    vae, _ = load_learner(model, workshop.device)
    try:
        milliseconds = time_way(workshop, vae, way, shape)
    except Exception as problem:  # noqa: BLE001 - whatever a compiler throws, the other ways remain
        print(f"{way.name} does not run at {shape.name}: {problem!r:.300}", file=sys.stderr, flush=True)
        return None
    workshop.log("kernels", way=way.name, shape=shape.name, milliseconds=milliseconds)
    return milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="+", type=Shape.parse, help="batch x frames x height x width")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    options = parser.parse_args()
    workshop = Workshop.open(options.out.parent)
    try_all(workshop, options.model, options.shapes, options.out, [WAYS[name] for name in options.ways])


if __name__ == "__main__":
    main()
