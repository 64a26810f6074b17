"""A job as the client sees it."""

import time

from filmgate.api.schemas import Cost, Status, Video, VideoError
from filmgate.api.services import Stations
from filmgate.errors import ModelNotFound
from filmgate.jobs import Job, JobState, Route, SourceKind

_POLLS_A_JOB = 20
_POLL_MS = (250, 10_000)


def view(stations: Stations, job: Job) -> Video:
    """The video object of a job. Blocks: it may ask the queue for the position."""
    position = stations.book.position(job.tenant_id, job.id) if job.state is JobState.QUEUED else None
    return render(stations, job, position)


def render(stations: Stations, job: Job, position: int | None) -> Video:
    """The video object of a job whose position is known."""
    eta = stations.gate.eta_seconds(job, position, time.time())
    source = job.spec.source
    is_remix = source is not None and source.kind is not SourceKind.IMAGE
    return Video(
        id=job.id,
        model=job.spec.model,
        status=status_of(job),
        progress=progress_of(job),
        created_at=int(job.created_at),
        completed_at=int(job.finished_at) if job.finished_at and job.state is JobState.COMPLETED else None,
        expires_at=int(job.expires_at) if job.expires_at else None,
        prompt=job.spec.prompt,
        remixed_from_video_id=source.job_id if source is not None and is_remix else None,
        seconds=seconds_of(stations, job),
        size=str(job.spec.size),
        error=error_of(job),
        stage=job.progress.stage if job.has_started and job.progress else None,
        eta_seconds=round(eta, 1) if eta is not None else None,
        queue_position=position,
        cost=cost_of(job, stations.settings.usd_per_gpu_hour),
        trace_id=job.trace_id,
        route=job.route,
        screening=job.screening.action,
    )


def status_of(job: Job) -> Status:
    """`queued` until a worker has really started: a lease alone is no work."""
    match job.state:
        case JobState.COMPLETED:
            return "completed"
        case JobState.FAILED:
            return "failed"
        case _:
            return "in_progress" if job.has_started else "queued"


def progress_of(job: Job) -> int:
    """Finished work in percent; 100 means that the clip is there."""
    if job.state is JobState.COMPLETED:
        return 100
    return min(int(100 * job.progress.fraction), 99) if job.progress else 0


def error_of(job: Job) -> VideoError | None:
    return VideoError(code=job.failure.reason, message=job.failure.message) if job.failure else None


def seconds_of(stations: Stations, job: Job) -> str:
    """The length as it was asked for: 33 frames of a 4k+1 model at 16 a second are "2"."""
    try:
        frames = stations.gate.shelf.find(job.spec.model).limits.frames
    except ModelNotFound:
        return f"{job.spec.seconds:g}"
    return f"{frames.seconds(job.spec.frames, job.spec.fps):g}"


def cost_of(job: Job, usd_per_gpu_hour: float) -> Cost:
    """Our GPU-seconds at their price; of a job that a provider renders, the provider's price instead."""
    if job.route is Route.MANAGED:
        return Cost(gpu_seconds=0.0, is_measured=job.measured is not None, usd=job.routing.usd)
    gpu_seconds = (job.measured or job.predicted).gpu_seconds
    usd = round(gpu_seconds / 3600 * usd_per_gpu_hour, 6) if usd_per_gpu_hour else None
    return Cost(gpu_seconds=round(gpu_seconds, 3), is_measured=job.measured is not None, usd=usd)


def poll_after_ms(video: Video) -> int:
    """When to look again. The SDK keeps the first value it sees for the whole job."""
    low, high = _POLL_MS
    return min(max(int((video.eta_seconds or 0.0) * 1000 / _POLLS_A_JOB), low), high)
