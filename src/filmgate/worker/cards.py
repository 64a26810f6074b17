"""The card of a loaded model: its own defaults and limits, as a client may ask for them."""

import time
from typing import TYPE_CHECKING

from filmgate.jobs import SourceKind
from filmgate.models.cards import FrameLimits, Limits, ModelCard, Rates, SizeLimits

if TYPE_CHECKING:
    from filmgate.pipeline.loading.loader import VideoModel

MOST_FPS, MOST_STEPS, MOST_GUIDANCE = 60, 1000, 100.0
# Of the order of a small model on a data-centre GPU: the first jobs that finish replace it.
FIRST_GUESS = Rates(text=0.5, denoise=0.1, decode=0.1, upload=0.5)


def card_of(name: str, model: "VideoModel") -> ModelCard:
    """What this worker can render with the model."""
    defaults, limits = model.defaults, model.limits
    step = limits.size_step
    largest = limits.max_size // step * step
    sources = {SourceKind.REMIX} | ({SourceKind.IMAGE} if limits.takes_image else set())
    return ModelCard(
        name=name,
        owner="worker",
        created=int(time.time()),
        size=SizeLimits((defaults.width, defaults.height), step, step, largest, largest * largest),
        frames=FrameLimits(
            defaults.frames,
            limits.frame_step,
            1,
            min(limits.frame_step + 1, limits.max_frames),
            limits.max_frames,
        ),
        fps=Limits(defaults.fps, 1, MOST_FPS),
        steps=Limits(defaults.steps, 1, MOST_STEPS),
        guidance=Limits(defaults.guidance, 0.0, MOST_GUIDANCE),
        rates=FIRST_GUESS,
        sources=frozenset(sources),
    )
