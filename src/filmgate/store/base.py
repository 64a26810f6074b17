"""Station 7: the ObjectStore port. Objects are written once, whole, encrypted with their tenant's key.

All verbs block: call them from a thread. StoreUnavailable (retryable) is raised when the medium cannot be
reached, ObjectNotFound for a name that is not there, ObjectCorrupt when bytes do not verify.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from filmgate.jobs import JOB_ID_PATTERN, TENANT_ID_PATTERN, JobId, TenantId

PART_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*){0,3}")
LIVE_PREFIX = "live/"
# No writer takes this long: what is older was left by one that was killed.
LEFTOVER_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """Where an object lives: `tenant/job/part`. Checked, so that no name can climb out of its tenant."""

    tenant_id: TenantId
    job_id: JobId
    part: str

    def __post_init__(self) -> None:
        is_safe = (
            TENANT_ID_PATTERN.fullmatch(self.tenant_id)
            and JOB_ID_PATTERN.fullmatch(self.job_id)
            and PART_PATTERN.fullmatch(self.part)
            and len(self.part) <= 100
        )
        if not is_safe:
            raise ValueError(f"not an object name: {self.tenant_id}/{self.job_id}/{self.part}")

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.job_id}/{self.part}"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A published object: its plain size and, right after `put` in order, the SHA-256 of its plain bytes."""

    name: ObjectName
    size_bytes: int
    sha256: str | None = None
    modified_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Room:
    """Space left for new objects; `is_low` means that no new work should be accepted."""

    free_bytes: int | None
    is_low: bool


class ObjectStore(Protocol):
    """The same verbs on local disk and on S3."""

    def put(
        self,
        name: ObjectName,
        chunks: Iterable[bytes],
        *,
        is_durable: bool = True,
        late_head: Callable[[], bytes] | None = None,
        head_bytes: int = 0,
    ) -> StoredObject:
        """Publish the stream under the name: all of it, durable, or nothing. Replaces an older object in
        one step. Raises StoreFull, and whatever `chunks` raises; both leave no trace.

        Without `is_durable` (live fragments, previews) a power cut may lose it, nothing else can.
        With `late_head`, the object starts with the `head_bytes` bytes that it returns after `chunks` has
        ended. Then `sha256` is None. Only a head without chunks may have another size.
        """
        ...

    def read(self, name: ObjectName, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The plain bytes [start, stop), verified as they are read; only the touched segments are opened.

        Raises ObjectNotFound before the first byte.
        """
        ...

    def stat(self, name: ObjectName) -> StoredObject:
        """The plain size, without reading the object."""
        ...

    def delete(self, tenant_id: TenantId, job_id: JobId, prefix: str = "") -> int:
        """Remove every object of the job whose part starts with the prefix; how many. Idempotent."""
        ...

    def parts(self, tenant_id: TenantId, job_id: JobId, prefix: str = "") -> list[StoredObject]:
        """The job's published objects in order of name."""
        ...

    def jobs(self, tenant_id: TenantId) -> Iterator[JobId]:
        """Every job that has an object, so that retention can find what no row knows."""
        ...

    def link(self, name: ObjectName, seconds: float) -> str:
        """An address that names this object alone, needs no key and expires: a URL, or a path (starting
        with `/objects/`) that the API serves itself.
        """
        ...

    def resolve(self, token: str) -> ObjectName:
        """The object a token of our own `/objects/` link names. Raises LinkInvalid."""
        ...

    def room(self) -> Room:
        """What is left, for admission."""
        ...

    def sweep(self, older_than_seconds: float) -> int:
        """Drop what killed writers left unpublished, if it is older than this; how many. Idempotent."""
        ...


def live_part(fence: int, number: int) -> str:
    """The part of one live fragment; the fence keeps a stale worker's fragments apart from ours."""
    return f"{live_prefix(fence)}{number:06d}"


def live_prefix(fence: int) -> str:
    """Every live fragment of one attempt."""
    return f"{LIVE_PREFIX}{fence}/"


def clip_part(fence: int) -> str:
    """The clip of one attempt: a late writer cannot replace the clip of the attempt that won."""
    return f"clip-{fence}.mp4"


def picture_part(kind: str, fence: int) -> str:
    """A still of one attempt (`preview`, `thumbnail`, `spritesheet`), fenced like its clip."""
    return f"{kind}-{fence}.jpg"


CHECKPOINT_PART = "latents"
UPLOAD_PART = "source"
