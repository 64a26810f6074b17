"""A job as clients see it."""

import time

from filmgate.api.schemas import Cost, Status, StoredImage, Video, VideoError
from filmgate.api.services import Services
from filmgate.errors import ModelNotFound
from filmgate.jobs import Job, JobState, Route, SourceKind

_POLLS_PER_JOB = 20
_REDUCED = "GPU memory ran out, so the clip was decoded in {}, which differs slightly from whole frames"
_POLL_MS = (250, 10_000)


def to_video(services: Services, job: Job) -> Video:
    """The video object of a job. May read the forecast: blocks."""
    is_waiting = services.forecast.has_lost_worker(job)
    slot = services.forecast.slot(job)
    eta = services.forecast.eta_seconds(job, time.time())
    source = job.spec.source
    is_remix = source is not None and source.kind is not SourceKind.IMAGE
    return Video(
        id=job.id,
        model=job.spec.model,
        status="queued" if is_waiting else status_of(job),
        progress=progress_of(job),
        created_at=int(job.created_at),
        completed_at=int(job.finished_at) if job.finished_at and job.state is JobState.COMPLETED else None,
        expires_at=int(job.expires_at) if job.expires_at else None,
        prompt=job.spec.prompt,
        remixed_from_video_id=source.job_id if source is not None and is_remix else None,
        source=source.kind if source is not None else None,
        input_reference=StoredImage(video_id=job.id) if job.spec.has_image else None,
        seconds=seconds_of(services, job),
        size=str(job.spec.clip_size),
        rendered_size=str(job.spec.size),
        quality=job.spec.quality if job.route is Route.GPU else None,
        fps=job.spec.fps,
        steps=job.spec.steps,
        seed=job.spec.seed,
        guidance=job.spec.guidance,
        lora=job.spec.lora,
        pixel_format=job.spec.pixel_format,
        negative_prompt=job.spec.negative_prompt,
        error=error_of(job),
        stage=job.progress.stage if job.has_started and job.progress and not is_waiting else None,
        eta_seconds=round(eta, 1) if eta is not None else None,
        queue_position=slot.position if slot is not None else None,
        cost=cost_of(job, services.settings.usd_per_gpu_hour),
        trace_id=job.trace_id,
        route=job.route,
        route_reason=job.routing.reason,
        screening=job.screening.action,
        warnings=warnings_of(services, job),
    )


def status_of(job: Job) -> Status:
    """`queued` until a worker has started: a lease alone is not progress."""
    match job.state:
        case JobState.COMPLETED:
            return "completed"
        case JobState.FAILED:
            return "failed"
        case _:
            return "in_progress" if job.has_started else "queued"


def progress_of(job: Job) -> int:
    """Finished work in percent; 100 means that the clip is available."""
    if job.state is JobState.COMPLETED:
        return 100
    return min(int(100 * job.progress.fraction), 99) if job.progress else 0


def error_of(job: Job) -> VideoError | None:
    return VideoError(code=job.failure.reason, message=job.failure.message) if job.failure else None


def seconds_of(services: Services, job: Job) -> str:
    """The length as requested: 33 frames of a causal model at 16 per second are "2"."""
    try:
        frames = services.models.find(job.spec.model).limits.frames
    except ModelNotFound:
        return f"{job.spec.seconds:g}"
    return f"{frames.seconds(job.spec.frames, job.spec.fps):g}"


def warnings_of(services: Services, job: Job) -> list[str]:
    """What the clip does not show as the request expects."""
    reduced = [_REDUCED.format(job.clip.reduced_to)] if job.clip and job.clip.reduced_to else []
    try:
        return services.models.find(job.spec.model).warnings(job.spec) + reduced
    except ModelNotFound:
        return reduced


def cost_of(job: Job, usd_per_gpu_hour: float) -> Cost:
    """The GPU-seconds of a job and their price, or the provider's price."""
    if job.route is Route.MANAGED:
        return Cost(gpu_seconds=0.0, is_measured=job.measured is not None, usd=job.routing.usd)
    gpu_seconds = (job.measured or job.predicted).gpu_seconds
    usd = round(gpu_seconds / 3600 * usd_per_gpu_hour, 6) if usd_per_gpu_hour else None
    return Cost(gpu_seconds=round(gpu_seconds, 3), is_measured=job.measured is not None, usd=usd)


def poll_after_ms(video: Video) -> int:
    """The polling interval. The SDK uses the first value for the whole job."""
    low, high = _POLL_MS
    return min(max(int((video.eta_seconds or 0.0) * 1000 / _POLLS_PER_JOB), low), high)
