"""Finds the job that an earlier request with the same key or body created."""

import sqlalchemy as sa

from filmgate.database.schema import jobs
from filmgate.errors import IdempotencyConflict
from filmgate.jobs import Idempotency, TenantId
from filmgate.scheduling.rows import Row

_OWN = jobs.c.tenant_id == sa.bindparam("own")
_BY_KEY = sa.select(jobs).where(_OWN, jobs.c.idempotency_key == sa.bindparam("key"))
_BY_BODY = (
    sa.select(jobs)
    .where(_OWN, jobs.c.body_digest == sa.bindparam("digest"), jobs.c.idempotency_key.is_(None))
    .where(jobs.c.created_at > sa.bindparam("since"))
    .order_by(jobs.c.seq.desc())
    .limit(1)
)
_FOUND_ORIGINAL = sa.update(jobs).where(jobs.c.seq == sa.bindparam("the_seq")).values(awaits_original=False)


def find_duplicate(
    connection: sa.Connection, tenant_id: TenantId, idempotency: Idempotency, since: float
) -> Row | None:
    """The row of the job this request already created, None for a new request. Raises IdempotencyConflict."""
    if idempotency.key is not None:
        return _find_by_key(connection, tenant_id, idempotency)
    same = {"own": tenant_id, "digest": idempotency.body_digest, "since": since}
    if idempotency.is_retry:
        return connection.execute(_BY_BODY, same).mappings().one_or_none()
    # A request that arrives after its own retry is that job too, but only once: the next request with the
    # same body creates a second clip.
    waiting = _BY_BODY.where(jobs.c.awaits_original)
    row = connection.execute(waiting, same).mappings().one_or_none()
    if row is not None:
        connection.execute(_FOUND_ORIGINAL, {"the_seq": row["seq"]})
    return row


def _find_by_key(connection: sa.Connection, tenant_id: TenantId, idempotency: Idempotency) -> Row | None:
    keyed = {"own": tenant_id, "key": idempotency.key}
    row = connection.execute(_BY_KEY, keyed).mappings().one_or_none()
    if row is not None and row["body_digest"] != idempotency.body_digest:
        raise IdempotencyConflict(
            "this Idempotency-Key was used with a different body", option="Idempotency-Key"
        )
    return row
