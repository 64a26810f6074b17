"""What the two transformer stages share: the pool in memory, noise levels, the model pair and its running
average.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.flipbook.clip_formats import latent_grid
from training.flipbook.networks import Sizes, build_text_encoder, build_transformer
from training.flipbook.renderer import Format
from training.flipbook.velocity import Prompt, encode_prompts, rotary_tables
from training.flipbook.words import build_tokenizer
from training.flipbook.workshop import Workshop

END_TOKEN = 1  # an empty prompt is this token alone
SHIFT = 3.0  # noise levels lean towards noise, in training as in sampling


@dataclass(frozen=True, slots=True)
class Shelf:
    """All pooled clips of one format."""

    tokens: Tensor
    ids: Tensor
    lengths: Tensor
    rotary: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Example:
    """A batch to learn from: clean tokens and one caption of each clip."""

    tokens: Tensor
    ids: Tensor
    lengths: Tensor
    rotary: tuple[Tensor, Tensor]

    def without_text(self, chosen: Tensor) -> "Example":
        """The same clips with an empty prompt wherever `chosen` is true."""
        empty = torch.zeros_like(self.ids)
        empty[:, 0] = END_TOKEN
        ids = torch.where(chosen.unsqueeze(1), empty, self.ids)
        lengths = torch.where(chosen, torch.ones_like(self.lengths), self.lengths)
        return Example(self.tokens, ids, lengths, self.rotary)


class Pool:
    """Latents on the device, sampled without a word to the host."""

    def __init__(self, workshop: Workshop, transformer: Any) -> None:
        self.shelves = []
        for part in workshop.require("pool"):
            grid = latent_grid(Format(*part["format"]))
            tables = rotary_tables(transformer, grid)
            self.shelves.append(Shelf(part["tokens"], part["ids"], part["lengths"], tables))
        self.clips = sum(len(shelf.tokens) for shelf in self.shelves)

    def sample(self, batch: int) -> Example:
        """A batch of one format, formats in proportion to their clips."""
        weights = torch.tensor([float(len(shelf.tokens)) for shelf in self.shelves])
        shelf = self.shelves[int(torch.multinomial(weights, 1))]
        device = shelf.tokens.device
        rows = torch.randint(len(shelf.tokens), (batch,), device=device)
        column = torch.randint(shelf.ids.shape[1], (batch,), device=device)
        ids, lengths = shelf.ids[rows, column].long(), shelf.lengths[rows, column].long()
        return Example(shelf.tokens[rows].float(), ids, lengths, shelf.rotary)


def shift_noise_level(level: Tensor, shift: float = SHIFT) -> Tensor:
    """The warp that the schedulers' `flow_shift` applies."""
    return shift * level / (1 + (shift - 1) * level)


def sample_noise_level(batch: int, device: torch.device) -> Tensor:
    """Mostly the middle of the path, where there is most to learn, and now and then anywhere."""
    middle = torch.sigmoid(torch.randn(batch, device=device))
    anywhere = torch.rand(batch, device=device)
    chosen = torch.rand(batch, device=device) < 0.2
    return shift_noise_level(torch.where(chosen, anywhere, middle))


def blend(clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
    """The straight path from clip (level 0) to noise (level 1)."""
    return torch.lerp(clean, noise, level.view(-1, 1, 1))


class Painter:
    """Text encoder and transformer: what is trained, averaged, distilled and exported together."""

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

    def freeze(self) -> "Painter":
        for module in (self.text_encoder, self.transformer):
            module.eval().requires_grad_(False)
        return self

    def clone(self) -> "Painter":
        return copy.deepcopy(self)

    def read(self, example: Example) -> Prompt:
        return encode_prompts(self.text_encoder, example.ids, example.lengths)


class RunningAverage:
    """An exponential average of a painter's weights: smoother than any one step."""

    def __init__(self, painter: Painter, decay: float) -> None:
        self.painter, self.decay = painter.clone().freeze(), decay

    @torch.no_grad()
    def follow(self, painter: Painter, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.painter.parameters(), painter.parameters(), 1 - decay)
