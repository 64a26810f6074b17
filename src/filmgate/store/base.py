"""The ObjectStore port. An object is written whole and encrypted with its tenant's key.

All methods block: call them from a thread. They raise StoreUnavailable (retryable) when the storage cannot
be reached, ObjectNotFound for a name that does not exist, ObjectCorrupt when bytes do not verify.
"""

import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol, TypeAlias

from filmgate.errors import ObjectNotFound
from filmgate.jobs import JOB_ID_PATTERN, TENANT_ID_PATTERN, JobId, TenantId

PART_PATTERN = re.compile(r"(?=.{1,100}\Z)[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*){0,3}")
LIVE_PREFIX = "live/"
# An unpublished object older than this belongs to a writer that was killed.
UNPUBLISHED_SECONDS = 86400.0
CHECKPOINT_PART = "latents"
UPLOAD_PART = "source"

_MEDIA_TYPES = {".mp4": "video/mp4", ".jpg": "image/jpeg"}

Chunks: TypeAlias = Generator[bytes, None, None]


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """The name of an object: `tenant/job/part`. Raises ValueError for a name that could leave its tenant."""

    tenant_id: TenantId
    job_id: JobId
    part: str

    def __post_init__(self) -> None:
        is_safe = (
            TENANT_ID_PATTERN.fullmatch(self.tenant_id)
            and JOB_ID_PATTERN.fullmatch(self.job_id)
            and PART_PATTERN.fullmatch(self.part)
        )
        if not is_safe:
            raise ValueError(f"not an object name: {self.tenant_id}/{self.job_id}/{self.part}")

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.job_id}/{self.part}"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A published object. `sha256` of its plain bytes is known only after a `put` without a late head."""

    name: ObjectName
    size_bytes: int
    sha256: str | None = None
    modified_at: float = 0.0


class ObjectStore(Protocol):
    """The same operations on a local disk and on S3."""

    @property
    def identity(self) -> str:
        """The same for every process that uses the same storage, and different for any other storage."""
        ...

    def put(
        self,
        name: ObjectName,
        chunks: Iterable[bytes],
        *,
        is_durable: bool = True,
        late_head: Callable[[], bytes] | None = None,
        head_bytes: int = 0,
    ) -> StoredObject:
        """Publishes the stream under the name, in one step: all of it, durable, or nothing. Replaces an
        existing object. Raises StoreFull and whatever `chunks` raises; nothing is published then.

        Without `is_durable` (live fragments, previews) a power failure may lose the object.
        With `late_head`, the object starts with the `head_bytes` bytes that it returns after `chunks` has
        ended. Then `sha256` is None. Only a head without chunks may have another size.
        """
        ...

    def read(self, name: ObjectName, start: int = 0, stop: int | None = None) -> Chunks:
        """The plain bytes [start, stop), verified as they are read. Reads only the segments of the range.

        Raises ObjectNotFound from this call, not from the first chunk. A reader that stops early must close
        the chunks, which hold a file or a connection.
        """
        ...

    def stat(self, name: ObjectName) -> StoredObject:
        """The object's plain size and time. Does not read its bytes."""
        ...

    def delete(self, tenant_id: TenantId, job_id: JobId, prefix: str = "") -> int:
        """Deletes all objects of the job whose part starts with the prefix, including damaged objects.
        Returns how many. Idempotent.
        """
        ...

    def jobs(self, tenant_id: TenantId) -> Iterator[tuple[JobId, list[StoredObject]]]:
        """All jobs of the tenant that use storage, ordered by id, each with its published objects, ordered by
        name. A damaged object is listed with size 0. On S3, one listing for all jobs; a job may have no
        object, but old versions that `delete` deletes.
        """
        ...

    def link(self, name: ObjectName, seconds: float) -> str:
        """A link to this object only, which needs no API key and expires. Either a URL, or a path under
        `/objects/` that the API serves.
        """
        ...

    def resolve(self, token: str) -> ObjectName:
        """The object of an `/objects/` link, by its token. Raises LinkInvalid."""
        ...

    def is_nearly_full(self) -> bool:
        """Whether too little space is left for new jobs."""
        ...

    def sweep(self, older_than_seconds: float) -> int:
        """Deletes unpublished objects older than this. Returns how many. Idempotent."""
        ...


def exists(store: ObjectStore, name: ObjectName) -> bool:
    """Whether the object is in the store."""
    try:
        store.stat(name)
    except ObjectNotFound:
        return False
    return True


def live_part(fence: int, number: int) -> str:
    """The part of one live fragment. The fence separates it from the fragments of a stale worker."""
    return f"{live_prefix(fence)}{number:06d}"


def live_prefix(fence: int) -> str:
    """The prefix of all live fragments of one attempt."""
    return f"{LIVE_PREFIX}{fence}/"


def clip_part(fence: int) -> str:
    """The part of an attempt's clip. The fence keeps a late writer from replacing the clip of the winner."""
    return f"clip-{fence}.mp4"


def picture_part(kind: str, fence: int) -> str:
    """The part of an attempt's still (`preview`, `thumbnail`, `spritesheet`), fenced like its clip."""
    return f"{kind}-{fence}.jpg"


def media_type_of(part: str) -> str:
    """The media type of a clip or a still."""
    return _MEDIA_TYPES.get(PurePosixPath(part).suffix, "application/octet-stream")


class Meter:
    """Iterates over chunks and counts them: size and SHA-256 are final when the iteration ends."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._digest.update(chunk)
            self.size_bytes += len(chunk)
            yield chunk

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()
