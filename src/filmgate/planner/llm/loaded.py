"""The time to the first token of a replica under load: a simulation of its clients.

Each of the sequences is a client that sends a prompt, waits for the prompts before it, reads its answer and
sends the next prompt. Prompts are prefilled one at a time, in steps that also decode the other sequences.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace

from filmgate.planner.llm.step_time import Serving, decode_step, first_token_seconds, steady_token_seconds
from filmgate.planner.percentiles import percentile

REQUESTS = 1500
SEED = 5


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds to the first token."""

    mean: float
    p50: float
    p95: float
    p99: float


def loaded_first_token(
    serving: Serving, prompt: int, answer: int, sequences: int, constants: Mapping[str, float]
) -> FirstToken:
    """The time to the first token when `sequences` are always in progress."""
    prefill = first_token_seconds(serving, prompt, constants)
    if sequences <= 1:
        return FirstToken(prefill, prefill, prefill, prefill)
    busy = prefill + decode_step(serving, sequences, prompt + answer / 2, constants).seconds
    reading = answer * steady_token_seconds(serving, sequences, prompt, answer, constants)
    waits = _simulate(busy, reading, sequences)
    return FirstToken(
        sum(waits) / len(waits), percentile(waits, 0.5), percentile(waits, 0.95), percentile(waits, 0.99)
    )


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
