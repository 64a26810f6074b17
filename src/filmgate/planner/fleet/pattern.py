"""Serving patterns: how a workload runs, the AWS service that fits it, and the way Filmgate does it."""

from dataclasses import dataclass
from enum import StrEnum


class Pattern(StrEnum):
    """How the service runs."""

    WARM = "always warm"
    SCHEDULED = "warm in the busy hours"
    QUEUE = "queue with scale to zero"
    AUTOSCALED = "queue with autoscaling"
    MANAGED = "managed API"


@dataclass(frozen=True, slots=True)
class Choice:
    """A pattern and the reasons for it, in order."""

    pattern: Pattern
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of work, with the service of AWS that fits and the way of Filmgate."""

    name: str
    aws: str
    filmgate: str


WORKLOADS = (
    Workload(
        "interactive, steady",
        "SageMaker real-time endpoint, or EKS with warm nodes",
        "workers that are always warm; the managed route covers spikes",
    ),
    Workload(
        "clips that may wait",
        "SQS with SageMaker asynchronous inference or EKS",
        "the queue, with a fleet sized for its backlog",
    ),
    Workload(
        "batch overnight",
        "AWS Batch or SageMaker batch transform on spot",
        "`filmgate worker` on spot instances; latents are checkpointed, interrupted clips are handed back",
    ),
    Workload(
        "streaming chat",
        "SageMaker or EKS with vLLM",
        "not with Filmgate: `plan llm` sizes an engine such as vLLM",
    ),
    Workload(
        "training on spot",
        "SageMaker managed spot training",
        "not with Filmgate, except the training script of its own small model",
    ),
    Workload(
        "fine-tuned variants of one model",
        "SageMaker inference components, one adapter each",
        "one fleet for all variants: a request names its LoRA adapter",
    ),
    Workload(
        "long tail of models",
        "SageMaker multi-model endpoint",
        "one worker with several --model; it keeps as many loaded as fit the GPU",
    ),
)
