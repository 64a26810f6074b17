"""Downloads a finished clip from the provider into the tenant's store."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

from filmgate.errors import ProviderError, ProviderRefused
from filmgate.jobs import Clip, InvocationId, Lease, StageSeconds, StillKind
from filmgate.providers.base import Provider
from filmgate.providers.managed.stills import NoStills, make_stills
from filmgate.scheduling.base import AttemptResult
from filmgate.store.base import ObjectName, ObjectStore, StoredObject, clip_part, picture_part
from filmgate.telemetry.logs import Log
from filmgate.worker.publisher import STORE_OUTAGES, retry

_T = TypeVar("_T")
log = Log("worker")

# Limits of a download, so that it neither fills the disk nor occupies a thread forever.
MAX_CLIP_BYTES = 2 << 30
MAX_DOWNLOAD_SECONDS = 1800.0


class ClipDownloader:
    """Streams clips: no whole clip in memory, and no unencrypted bytes on disk."""

    def __init__(self, provider: Provider, store: ObjectStore, retry_seconds: float) -> None:
        self._provider = provider
        self._store = store
        self._retry_seconds = retry_seconds

    def download(self, lease: Lease, invocation_id: InvocationId, check: Callable[[], None]) -> AttemptResult:
        """Store the clip and its stills under the fence of this lease. `check` raises to stop."""
        began = time.monotonic()
        stored = self._retry(lambda: self._store_clip(lease, invocation_id, check), check)
        pictures = self._retry(lambda: self._store_stills(lease, stored), check)
        clip = Clip(
            part=stored.name.part,
            size_bytes=stored.size_bytes,
            sha256=stored.sha256 or "",
            thumbnail=pictures.get(StillKind.THUMBNAIL),
            spritesheet=pictures.get(StillKind.SPRITESHEET),
        )
        # The local GPUs did no work; the price is in the job's routing.
        return AttemptResult(clip, StageSeconds(upload=time.monotonic() - began))

    def _retry(self, action: Callable[[], _T], check: Callable[[], None]) -> _T:
        ends_at = time.monotonic() + self._retry_seconds
        return retry(action, STORE_OUTAGES, log, ends_at=lambda: ends_at, check=check)

    def _store_clip(
        self, lease: Lease, invocation_id: InvocationId, check: Callable[[], None]
    ) -> StoredObject:
        def chunks() -> Iterator[bytes]:
            size, ends = 0, time.monotonic() + MAX_DOWNLOAD_SECONDS
            for chunk in self._provider.fetch(invocation_id):
                check()
                size += len(chunk)
                if size > MAX_CLIP_BYTES:
                    raise ProviderRefused(f"the provider's clip has more than {MAX_CLIP_BYTES} bytes")
                if time.monotonic() > ends:
                    raise ProviderError(f"the download takes more than {MAX_DOWNLOAD_SECONDS:g} seconds")
                yield chunk

        return self._store.put(_name(lease, clip_part(lease.fence)), chunks())

    def _store_stills(self, lease: Lease, stored: StoredObject) -> dict[StillKind, str]:
        """Make thumbnail and sprite sheet from the stored clip. A clip without stills is valid."""
        try:
            with closing(self._store.read(stored.name)) as clip:
                stills = make_stills(clip)
        except NoStills as exc:
            log.warning("no stills could be made of the clip", job_id=lease.job.id, reason=exc.reason)
            return {}
        parts = {kind: picture_part(kind, lease.fence) for kind in stills}
        for kind, data in stills.items():
            self._store.put(_name(lease, parts[kind]), [data])
        return parts


def _name(lease: Lease, part: str) -> ObjectName:
    return ObjectName(lease.job.tenant_id, lease.job.id, part)
