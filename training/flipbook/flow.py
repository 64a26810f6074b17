"""What both transformer stages share: the pool in memory, noise levels, the networks and their average."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.flipbook.clip_formats import latent_grid
from training.flipbook.networks import Sizes, build_text_encoder, build_transformer
from training.flipbook.renderer import Format
from training.flipbook.tokenizer import build_tokenizer
from training.flipbook.trainer import update_average
from training.flipbook.training_run import TrainingRun
from training.flipbook.velocity import EncodedPrompt, encode_prompts, rotary_tables

END_TOKEN = 1  # an empty prompt consists of this token
SHIFT = 3.0  # shifts noise levels towards noise, in training and in sampling


@dataclass(frozen=True, slots=True)
class FormatPool:
    """All clips of the pool that have one format."""

    tokens: Tensor
    ids: Tensor
    lengths: Tensor
    rotary: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Example:
    """A training batch: clean tokens and one caption per clip."""

    tokens: Tensor
    ids: Tensor
    lengths: Tensor
    rotary: tuple[Tensor, Tensor]

    def without_text(self, chosen: Tensor) -> "Example":
        """The same clips with an empty prompt where `chosen` is true."""
        empty = torch.zeros_like(self.ids)
        empty[:, 0] = END_TOKEN
        ids = torch.where(chosen.unsqueeze(1), empty, self.ids)
        lengths = torch.where(chosen, torch.ones_like(self.lengths), self.lengths)
        return Example(self.tokens, ids, lengths, self.rotary)


class Pool:
    """Latents on the device, sampled without synchronising with the host."""

    def __init__(self, run: TrainingRun, transformer: Any) -> None:
        self.by_format = []
        for part in run.require("pool"):
            grid = latent_grid(Format(*part["format"]))
            tables = rotary_tables(transformer, grid)
            self.by_format.append(FormatPool(part["tokens"], part["ids"], part["lengths"], tables))
        self.clips = sum(len(part.tokens) for part in self.by_format)

    def sample(self, batch: int) -> Example:
        """A batch of one format; formats are chosen in proportion to their clips."""
        weights = torch.tensor([float(len(part.tokens)) for part in self.by_format])
        chosen_pool = self.by_format[int(torch.multinomial(weights, 1))]
        device = chosen_pool.tokens.device
        rows = torch.randint(len(chosen_pool.tokens), (batch,), device=device)
        column = torch.randint(chosen_pool.ids.shape[1], (batch,), device=device)
        ids, lengths = chosen_pool.ids[rows, column].long(), chosen_pool.lengths[rows, column].long()
        return Example(chosen_pool.tokens[rows].float(), ids, lengths, chosen_pool.rotary)


def shift_noise_level(level: Tensor, shift: float = SHIFT) -> Tensor:
    """The shift that the schedulers' `flow_shift` applies."""
    return shift * level / (1 + (shift - 1) * level)


def sample_noise_level(batch: int, device: torch.device) -> Tensor:
    """80 % logit-normal around the middle of the path, 20 % uniform; both shifted."""
    middle = torch.sigmoid(torch.randn(batch, device=device))
    anywhere = torch.rand(batch, device=device)
    chosen = torch.rand(batch, device=device) < 0.2
    return shift_noise_level(torch.where(chosen, anywhere, middle))


def blend(clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
    """The point at `level` on the straight path from clip (0) to noise (1)."""
    return torch.lerp(clean, noise, level.view(-1, 1, 1))


class Denoiser:
    """Text encoder and transformer, which are trained, averaged, distilled and exported together."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        tokenizer = build_tokenizer()
        self.text_encoder = build_text_encoder(sizes, len(tokenizer)).to(device).train()
        self.transformer = build_transformer(sizes).to(device).train()

    def parameters(self) -> list[Tensor]:
        return [*self.text_encoder.parameters(), *self.transformer.parameters()]

    def state_dict(self) -> dict[str, Any]:
        return {"text_encoder": self.text_encoder.state_dict(), "transformer": self.transformer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.text_encoder.load_state_dict(state["text_encoder"])
        self.transformer.load_state_dict(state["transformer"])

    def freeze(self) -> "Denoiser":
        for module in (self.text_encoder, self.transformer):
            module.eval().requires_grad_(False)
        return self

    def clone(self) -> "Denoiser":
        return copy.deepcopy(self)

    def encode_prompt(self, example: Example) -> EncodedPrompt:
        return encode_prompts(self.text_encoder, example.ids, example.lengths)


class RunningAverage:
    """An exponential moving average of a denoiser's weights."""

    def __init__(self, denoiser: Denoiser, decay: float) -> None:
        self.denoiser, self.decay = denoiser.clone().freeze(), decay

    def update(self, denoiser: Denoiser, step: int) -> None:
        update_average(self.denoiser.parameters(), denoiser.parameters(), self.decay, step)
