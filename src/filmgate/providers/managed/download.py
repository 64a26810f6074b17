"""A finished clip from the provider into its tenant's store, encrypted with the tenant's key on the way."""

import time
from collections.abc import Callable, Iterator

from filmgate.errors import ProviderError, ProviderRefused
from filmgate.jobs import Clip, InvocationId, Lease, StageSeconds, StillKind
from filmgate.providers.base import Provider
from filmgate.providers.managed.stills import NoStills, make_stills
from filmgate.scheduling.base import Finish
from filmgate.store.base import ObjectName, ObjectStore, StoredObject, clip_part, picture_part
from filmgate.telemetry.logs import Log
from filmgate.worker.publisher import Publisher

log = Log("worker")

# A stranger's stream may not fill our disk, nor hold one of our few threads for ever.
MOST_CLIP_BYTES = 2 << 30
MOST_DOWNLOAD_SECONDS = 1800.0


class Courier:
    """Streams clips: neither the whole of one in memory, nor any of it in the clear on disk."""

    def __init__(self, provider: Provider, store: ObjectStore, publisher: Publisher) -> None:
        self._provider = provider
        self._store = store
        self._publisher = publisher

    def deliver(self, lease: Lease, invocation_id: InvocationId, check: Callable[[], None]) -> Finish:
        """The clip and its stills, durable under this lease's fence. `check` raises when it should stop."""
        began = time.monotonic()
        stored = self._publisher.retry_store(
            lambda: self._store_clip(lease, invocation_id, check), check, log
        )
        pictures = self._publisher.retry_store(lambda: self._store_stills(lease, stored), check, log)
        clip = Clip(
            part=stored.name.part,
            size_bytes=stored.size_bytes,
            sha256=stored.sha256 or "",
            thumbnail=pictures.get(StillKind.THUMBNAIL),
            spritesheet=pictures.get(StillKind.SPRITESHEET),
        )
        # None of our GPU-seconds went into it: the provider's price is on the job's routing.
        return Finish(clip, StageSeconds(upload=time.monotonic() - began))

    def _store_clip(
        self, lease: Lease, invocation_id: InvocationId, check: Callable[[], None]
    ) -> StoredObject:
        def chunks() -> Iterator[bytes]:
            size, ends = 0, time.monotonic() + MOST_DOWNLOAD_SECONDS
            for chunk in self._provider.fetch(invocation_id):
                check()
                size += len(chunk)
                if size > MOST_CLIP_BYTES:
                    raise ProviderRefused(f"the provider's clip has more than {MOST_CLIP_BYTES} bytes")
                if time.monotonic() > ends:
                    raise ProviderError(f"the download takes more than {MOST_DOWNLOAD_SECONDS:g} seconds")
                yield chunk

        return self._store.put(_name(lease, clip_part(lease.fence)), chunks())

    def _store_stills(self, lease: Lease, stored: StoredObject) -> dict[StillKind, str]:
        """Thumbnail and sprite sheet from the clip as it lies in the store; a clip without them is a clip."""
        try:
            stills = make_stills(self._store.read(stored.name))
        except NoStills as exc:
            log.warning("the clip has no stills", job_id=lease.job.id, reason=exc.reason)
            return {}
        parts = {kind: picture_part(kind, lease.fence) for kind in stills}
        for kind, data in stills.items():
            self._store.put(_name(lease, parts[kind]), [data])
        return parts


def _name(lease: Lease, part: str) -> ObjectName:
    return ObjectName(lease.job.tenant_id, lease.job.id, part)
