"""Claims of background tasks that one process of an installation runs for all of them."""

import sqlalchemy as sa

from filmgate.database.engine import Database
from filmgate.database.schema import task_claims
from filmgate.database.upserts import insert_into


def claim_task(database: Database, task: str, seconds: float) -> bool:
    """Claim the task for this process, unless a process has claimed it within the last `seconds`. Atomic.

    A claim in the future was made before the clock was set back: it does not count.
    """
    with database.write(is_durable=False) as connection:
        now = database.now(connection)
        insert = insert_into(connection, task_claims).values(task=task, claimed_at=now)
        is_free = sa.not_(task_claims.c.claimed_at.between(now - seconds, now))
        claim = insert.on_conflict_do_update(
            index_elements=["task"], set_={"claimed_at": now}, where=is_free
        ).returning(task_claims.c.task)
        return connection.execute(claim).one_or_none() is not None
