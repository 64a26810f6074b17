"""A spec as an offer can render it: the nearest size, length and rate, and every difference by name.

Pure functions. What a tenant's policy forbids is an obstacle, never a quiet change.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from filmgate.errors import ProviderCannot
from filmgate.jobs import ManagedPolicy, SourceKind, VideoSpec
from filmgate.providers.base import Offer, Rendition, ShapeRange

# 81 frames at 16 a second are a five-second clip to everybody.
SLACK_SECONDS = 0.25
Size = tuple[int, int]


def adapt(spec: VideoSpec, offers: Sequence[Offer], policy: ManagedPolicy) -> Rendition:
    """The rendition nearest to the spec that the policy allows; among equals the cheapest.

    Raises ProviderCannot with what is in the way of the nearest one.
    """
    renditions = sorted((fit(spec, offer) for offer in offers), key=lambda r: (*_distance(spec, r), r.usd))
    refused: list[str] = []
    for rendition in renditions:
        found = obstacles(spec, rendition, policy)
        if not found:
            return replace(rendition, may_resize=policy.may_resize)
        refused += [obstacle for obstacle in found if obstacle not in refused]
    raise ProviderCannot("; ".join(refused[:3]) or "the provider offers nothing")


def fit(spec: VideoSpec, offer: Offer) -> Rendition:
    """The spec in this offer's nearest shape, whatever the policy says."""
    width, height = nearest_size((spec.width, spec.height), offer)
    near = replace(
        spec,
        model=offer.model,
        width=width,
        height=height,
        seconds=nearest_seconds(spec.seconds, offer),
        fps=offer.fps or spec.fps,
        seed=spec.seed if offer.takes_seed else None,
    )
    if not offer.takes_knobs:
        near = replace(near, steps=None, guidance=None, negative_prompt=None)
    usd = round(near.seconds * offer.usd_per_second, 6)
    return Rendition(offer, near, describe_changes(spec, near), usd)


def describe_changes(asked: VideoSpec, rendered: VideoSpec) -> tuple[str, ...]:
    """What will differ, in words an operator reads; steps and guidance are the model's own affair."""
    changes = []
    if rendered.model != asked.model:
        changes.append(f"model {asked.model} -> {rendered.model}")
    if rendered.size != asked.size:
        changes.append(f"size {asked.size} -> {rendered.size}")
    if is_other_length(asked.seconds, rendered.seconds):
        changes.append(f"length {asked.seconds:g} s -> {rendered.seconds:g} s")
    if rendered.fps != asked.fps:
        changes.append(f"fps {asked.fps} -> {rendered.fps}")
    if asked.seed is not None and rendered.seed is None:
        changes.append("seed left out")
    if asked.negative_prompt and not rendered.negative_prompt:
        changes.append("negative prompt left out")
    return tuple(changes)


def obstacles(spec: VideoSpec, rendition: Rendition, policy: ManagedPolicy) -> list[str]:
    """Why this rendition may not or cannot be made; empty when it can."""
    offer, near = rendition.offer, rendition.spec
    checks = (
        (not policy.is_allowed, "the tenant allows no managed provider"),
        (
            bool(policy.regions) and offer.region not in policy.regions,
            f"the tenant does not allow region {offer.region or 'unknown'}",
        ),
        (
            policy.max_usd_per_clip is not None and rendition.usd > policy.max_usd_per_clip,
            f"{rendition.usd:g} USD is more than the tenant pays for a clip",
        ),
        (
            near.size != spec.size and not policy.may_resize,
            f"size {spec.size} would become {near.size}, which the tenant does not allow",
        ),
        (
            is_other_length(spec.seconds, near.seconds) and not policy.may_change_length,
            f"length {spec.seconds:g} s would become {near.seconds:g} s, which the tenant does not allow",
        ),
        (
            len(spec.prompt) > offer.max_prompt_chars,
            f"the prompt has {len(spec.prompt)} characters, {offer.model} takes {offer.max_prompt_chars}",
        ),
        (not _takes_source(spec, rendition), f"{offer.model} cannot start from what this job starts from"),
    )
    return [words for is_in_the_way, words in checks if is_in_the_way]


def is_other_length(asked: float, rendered: float) -> bool:
    return abs(asked - rendered) > SLACK_SECONDS


def nearest_size(size: Size, offer: Offer) -> Size:
    """The offered size of the most similar shape, and among those of the most similar area."""
    if offer.shapes is not None:
        return _snap(size, offer.shapes)
    return min(offer.sizes, key=lambda other: (_shape_gap(size, other), _area_gap(size, other)), default=size)


def nearest_seconds(seconds: float, offer: Offer) -> float:
    """The offered length closest to this one; of two equally close the shorter, which costs less."""
    if offer.shapes is not None:
        return min(max(seconds, offer.shapes.min_seconds), offer.shapes.max_seconds)
    return min(offer.seconds, key=lambda other: (abs(other - seconds), other), default=seconds)


def _takes_source(spec: VideoSpec, rendition: Rendition) -> bool:
    if spec.source is None:
        return True
    if spec.source.kind is SourceKind.IMAGE:
        return rendition.offer.takes_image
    # A remix is a new prompt on the same noise: the same model and the same seed, nothing to send along.
    is_same_model = rendition.spec.model == spec.model and rendition.offer.takes_seed
    return spec.source.kind is SourceKind.REMIX and is_same_model


def _distance(spec: VideoSpec, rendition: Rendition) -> tuple[float, float, float]:
    asked, near = (spec.width, spec.height), (rendition.spec.width, rendition.spec.height)
    length = max(abs(spec.seconds - rendition.spec.seconds) - SLACK_SECONDS, 0.0)
    return round(_shape_gap(asked, near), 6), round(_area_gap(asked, near), 6), length


def _shape_gap(one: Size, other: Size) -> float:
    return abs(math.log(one[0] * other[1] / (one[1] * other[0])))


def _area_gap(one: Size, other: Size) -> float:
    return abs(math.log(one[0] * one[1] / (other[0] * other[1])))


def _snap(size: Size, shapes: ShapeRange) -> Size:
    """Shrunk as one piece until it fits, then each side rounded down to a multiple."""
    shrink = min(1.0, shapes.max_side / max(size), math.sqrt(shapes.max_pixels / (size[0] * size[1])))
    smallest = -(-shapes.min_side // shapes.multiple)
    width, height = (max(int(side * shrink) // shapes.multiple, smallest) * shapes.multiple for side in size)
    return width, height
