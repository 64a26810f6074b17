"""The time to the first token of a replica under load: a simulation of its clients.

Each of the sequences is a client that sends a prompt, waits for the prompts before it, reads its answer and
sends the next prompt. Prompts are prefilled one after another, in chunks of at most `step_tokens`; each step
with a chunk also decodes the other sequences.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from filmgate.planner.llm.step_time import Serving, between_tokens_seconds, decode_step, step_tokens
from filmgate.planner.percentiles import percentile_of_sorted

REQUESTS = 1500
SEED = 5


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences that are always in progress. `cached` tokens of a prompt are in the prefix cache."""

    prompt: int
    answer: int
    sequences: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds to the first token."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "FirstToken":
        ordered = sorted(samples)
        return cls(
            sum(samples) / len(samples),
            *(percentile_of_sorted(ordered, share) for share in (0.5, 0.95, 0.99)),
        )


def token_seconds(serving: Serving, load: Load, constants: Mapping[str, float]) -> float:
    """Seconds between tokens when `load.sequences` are always in progress."""
    return between_tokens_seconds(
        serving, load.sequences, load.prompt, load.answer, constants, cached=load.cached
    )


def prefill_seconds(serving: Serving, load: Load, constants: Mapping[str, float]) -> float:
    """Seconds of the steps that prefill one prompt while the other sequences decode."""
    others = load.sequences - 1
    chunks, tokens = _chunks(serving, load, others)
    context = load.prompt + load.answer / 2 if others else float(load.prompt)
    return chunks * decode_step(serving, others, context, constants, prompt_tokens=tokens).seconds


def _chunks(serving: Serving, load: Load, decoding: int) -> tuple[int, float]:
    """The steps that prefill one prompt beside `decoding` sequences, and its tokens in each."""
    new = max(1, load.prompt - load.cached)
    chunks = math.ceil(new / max(1, step_tokens(serving.gpu) - decoding))
    return chunks, new / chunks


def loaded_first_token(serving: Serving, load: Load, constants: Mapping[str, float]) -> FirstToken:
    """The time to the first token when `load.sequences` are always in progress."""
    busy = prefill_seconds(serving, load, constants)
    if load.sequences <= 1:
        return FirstToken.of([busy])
    reading = load.answer * token_seconds(serving, load, constants)
    return FirstToken.of(_simulate(busy, reading, load.sequences))


def token_percentiles(serving: Serving, load: Load, constants: Mapping[str, float]) -> tuple[float, ...]:
    """Seconds between tokens at p50, p95 and p99. A step that also prefills a chunk takes longer."""
    context = load.prompt + load.answer / 2
    plain = decode_step(serving, load.sequences, context, constants).seconds
    chunks, tokens = _chunks(serving, load, load.sequences)
    with_chunk = (load.sequences - 1) * chunks / load.answer
    if with_chunk < 1:
        slow = decode_step(serving, load.sequences, context, constants, prompt_tokens=tokens).seconds
    else:  # every step prefills, and most of them more than one prompt
        slow = token_seconds(serving, load, constants)
    return tuple(slow if share > 1 - with_chunk else plain for share in (0.5, 0.95, 0.99))


def _simulate(busy: float, reading: float, clients: int) -> list[float]:
    """Seconds from each prompt to its first token. Answers vary in length by half in both directions."""
    draw = random.Random(SEED)  # noqa: S311 - a simulation, not a secret
    ready = [draw.uniform(0, reading + busy) for _ in range(clients)]
    heapify(ready)
    free, found = 0.0, []
    for _ in range(REQUESTS + clients):
        sent = ready[0]
        free = max(free, sent) + busy
        found.append(free - sent)
        heapreplace(ready, free + reading * draw.uniform(0.5, 1.5))
    return found[clients:]
