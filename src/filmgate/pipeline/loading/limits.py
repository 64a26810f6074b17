"""The limits of a loaded pipeline: from its configs, its family and an optional `filmgate.json`."""

import json
from dataclasses import replace
from pathlib import Path

from filmgate.errors import ModelError, UnsupportedValue
from filmgate.jobs import Size, SourceKind
from filmgate.models.limits import FrameLimits, ModelLimits, Range, SizeLimits
from filmgate.models.quality import FULL, LEVEL_NAMES
from filmgate.pipeline.loading.families.base import Family, Pipeline

DEFAULTS_FILE = "filmgate.json"
"""Optional, beside model_index.json: the model's own width, height, frames, fps, steps and guidance."""

MAX_FPS, MAX_STEPS, MAX_GUIDANCE = 60, 1000, 100.0
MAX_POSITIONS = 1024


def read_limits(pipe: Pipeline, family: Family, folder: Path) -> ModelLimits:
    """What the pipeline can render. Raises ModelError if `filmgate.json` in `folder` is not usable."""
    config = family.denoisers_of(pipe)[0].config
    patch = getattr(config, "patch_size", None) or 1
    patch = patch[-1] if isinstance(patch, list | tuple) else patch
    positions = min(getattr(config, "rope_max_seq_len", None) or MAX_POSITIONS, MAX_POSITIONS)
    spatial, temporal = family.compression(pipe)
    multiple, step = max(spatial * patch, family.size_multiple), family.frame_step(pipe)
    max_side = min(positions * spatial * patch, family.max_side(pipe)) // multiple * multiple
    max_frames = (positions - 1) * temporal // step * step + 1
    is_fixed = family.has_fixed_size(pipe)
    defaults = family.defaults(pipe)
    sources = {SourceKind.REMIX, SourceKind.IMAGE} if family.takes_image(pipe) else {SourceKind.REMIX}
    limits = ModelLimits(
        size=SizeLimits(defaults.size, multiple, multiple, max_side, max_side * max_side, is_fixed=is_fixed),
        frames=FrameLimits(defaults.frames, step, offset=1, min=1, max=max_frames),
        fps=Range(defaults.fps, 1, MAX_FPS),
        steps=Range(defaults.steps, 1, MAX_STEPS),
        guidance=Range(defaults.guidance, 0.0, MAX_GUIDANCE),
        sources=frozenset(sources),
        needs_image=family.needs_image(pipe),
        quality=LEVEL_NAMES if family.facts.has_quality_levels else (FULL,),
    )
    return _with_own_defaults(limits, folder / DEFAULTS_FILE)


def _with_own_defaults(limits: ModelLimits, file: Path) -> ModelLimits:
    if not file.is_file():
        return limits
    try:
        own = json.loads(file.read_text())
        default = limits.size.default
        size = Size(own.pop("width", default.width), own.pop("height", default.height))
        changed = replace(limits, size=replace(limits.size, default=size))
        for name, value in own.items():
            changed = replace(changed, **{name: replace(getattr(limits, name), default=value)})
        changed.check_defaults()
    except (OSError, ValueError, TypeError, AttributeError, UnsupportedValue) as exc:
        raise ModelError(f"{file} is not usable: {exc}") from exc
    return changed
