"""Fits a spec to a provider's models: the nearest size, length and frame rate, and a list of all changes.

Pure functions. A change that the tenant's policy forbids is an obstacle.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from filmgate.errors import ProviderCannot
from filmgate.jobs import ManagedPolicy, Size, SourceKind, VideoSpec
from filmgate.models.pixel_formats import PLAYABLE
from filmgate.models.quality import FULL
from filmgate.providers.base import ProviderModel, Rendition

# 81 frames at 16 per second count as five seconds.
SLACK_SECONDS = 0.25


def adapt(spec: VideoSpec, models: Sequence[ProviderModel], policy: ManagedPolicy) -> Rendition:
    """The rendition nearest to the spec that the policy allows; of equally near ones the cheapest.

    Raises ProviderCannot with the obstacles of the nearest renditions.
    """
    if spec.scaled_to is not None:  # a provider may render the size that was asked for
        spec = replace(spec, width=spec.scaled_to.width, height=spec.scaled_to.height, scaled_to=None)
    renditions = sorted((fit(spec, model) for model in models), key=lambda r: (*_distance(spec, r), r.usd))
    found: list[str] = []
    for rendition in renditions:
        obstacles = find_obstacles(spec, rendition, policy)
        if not obstacles:
            return replace(rendition, may_resize=policy.may_resize)
        found += [obstacle for obstacle in obstacles if obstacle not in found]
    raise ProviderCannot("; ".join(found[:3]) or "the provider has no models")


def fit(spec: VideoSpec, model: ProviderModel) -> Rendition:
    """The spec in the model's nearest size and length, without regard to the policy."""
    width, height = nearest_size(spec.size, model)
    near = replace(
        spec,
        model=model.model,
        width=width,
        height=height,
        seconds=nearest_seconds(spec.seconds, model),
        fps=model.fps or spec.fps,
        seed=spec.seed if model.takes_seed else None,
        quality=spec.quality if spec.quality in model.quality else FULL,
        pixel_format=None,
    )
    if not model.takes_options:
        near = replace(near, steps=None, guidance=None, negative_prompt=None)
    usd = round(near.seconds * model.usd_per_second, 6)
    return Rendition(model, near, describe_changes(spec, near), usd)


def describe_changes(asked: VideoSpec, rendered: VideoSpec) -> tuple[str, ...]:
    """The differences between two specs, except steps and guidance, which depend on the model."""
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
        changes.append("seed dropped")
    if rendered.quality != asked.quality:
        changes.append(f"quality {asked.quality} -> {rendered.quality}")
    if asked.negative_prompt and not rendered.negative_prompt:
        changes.append("negative prompt dropped")
    return tuple(changes)


def find_obstacles(spec: VideoSpec, rendition: Rendition, policy: ManagedPolicy) -> list[str]:
    """The reasons why this rendition is forbidden or impossible."""
    model, near = rendition.model, rendition.spec
    checks = (
        (not policy.is_allowed, "the tenant allows no managed provider"),
        (
            bool(policy.regions) and model.region not in policy.regions,
            f"the tenant does not allow region {model.region or 'unknown'}",
        ),
        (
            policy.max_usd_per_clip is not None and rendition.usd > policy.max_usd_per_clip,
            f"{rendition.usd:g} USD exceeds the tenant's limit per clip",
        ),
        (
            near.size != spec.clip_size and not policy.may_resize,
            f"the tenant does not allow {spec.clip_size} to become {near.size}",
        ),
        (
            is_other_length(spec.seconds, near.seconds) and not policy.may_change_length,
            f"the tenant does not allow {spec.seconds:g} s to become {near.seconds:g} s",
        ),
        (
            len(spec.prompt) > model.max_prompt_chars,
            f"the prompt has {len(spec.prompt)} characters; {model.model} allows {model.max_prompt_chars}",
        ),
        (
            spec.pixel_format not in {None, PLAYABLE},
            f"{model.model} does not write {spec.pixel_format}",
        ),
        (not _takes_source(spec, rendition), f"{model.model} does not support this job's source"),
        (spec.lora is not None, f"{model.model} does not support adapters (LoRA)"),
        # A newer version accepted them: this one cannot tell what the clip would lack without them.
        (bool(spec.extra), f"this version of filmgate does not support {', '.join(sorted(spec.extra))}"),
    )
    return [message for is_obstacle, message in checks if is_obstacle]


def is_other_length(asked: float, rendered: float) -> bool:
    return abs(asked - rendered) > SLACK_SECONDS


def nearest_size(size: Size, model: ProviderModel) -> Size:
    """The nearest size: by aspect ratio first, then by area."""
    if model.size_limits is not None:
        return model.size_limits.nearest(size)
    return min(model.sizes, key=lambda other: (_shape_gap(size, other), _area_gap(size, other)), default=size)


def nearest_seconds(seconds: float, model: ProviderModel) -> float:
    """The nearest length; the shorter of two equally near ones, because it is cheaper."""
    if model.seconds_range is not None:
        return model.seconds_range.nearest(seconds)
    return min(model.seconds, key=lambda other: (abs(other - seconds), other), default=seconds)


def _takes_source(spec: VideoSpec, rendition: Rendition) -> bool:
    if spec.source is None:
        return True
    if spec.has_image and not rendition.model.takes_image:
        return False
    if spec.source.kind is SourceKind.IMAGE:
        return True
    # A remix renders a new prompt from the same noise: it needs the same model and the same seed.
    is_same_model = rendition.spec.model == spec.model and rendition.model.takes_seed
    return spec.source.kind is SourceKind.REMIX and is_same_model


def _distance(spec: VideoSpec, rendition: Rendition) -> tuple[float, float, float]:
    asked, near = spec.size, rendition.spec.size
    length = max(abs(spec.seconds - rendition.spec.seconds) - SLACK_SECONDS, 0.0)
    return round(_shape_gap(asked, near), 6), round(_area_gap(asked, near), 6), length


def _shape_gap(one: Size, other: Size) -> float:
    return abs(math.log(one.width * other.height / (one.height * other.width)))


def _area_gap(one: Size, other: Size) -> float:
    return abs(math.log(one.pixels / other.pixels))
