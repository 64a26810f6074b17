"""Which job is next: two index seeks, whatever the backlog.

Conditions of partial indexes are literals: a bound parameter would hide the index from the planner.
"""

import sqlalchemy as sa

from filmgate.database.schema import accounts, jobs
from filmgate.jobs import TenantId
from filmgate.queue.base import Offer
from filmgate.queue.ledger import lock_account
from filmgate.queue.rows import Row

IS_READY = sa.text("jobs.state = 'queued' AND jobs.wake_at IS NULL")
# The server's clock went back by more than any correction does: the lease was given in another time.
_CLOCK_STEP_SECONDS = 60.0


def peek_due(connection: sa.Connection, offer: Offer, steady_now: float) -> Row | None:
    """A job whose lease or backoff is over, not locked yet; it has had its turn and waits for no other."""
    running, most = _own_account(accounts.c.running), _own_account(accounts.c.max_running)
    has_place = sa.or_(sa.text("jobs.state = 'running'"), most.is_(None), running < most)
    statement = (
        sa.select(jobs.c.seq, jobs.c.tenant_id, jobs.c.fence)
        .where(sa.text("jobs.wake_at IS NOT NULL"), _is_due(steady_now), *_suits(offer), has_place)
        .order_by(jobs.c.wake_at)
        .limit(1)
    )
    return connection.execute(statement).mappings().one_or_none()


def take_due(connection: sa.Connection, peeked: Row, steady_now: float) -> Row | None:
    """The job that was peeked at, locked; None when another worker was faster or its own woke up."""
    lock_account(connection, peeked["tenant_id"])
    same = (jobs.c.seq == peeked["seq"], jobs.c.fence == peeked["fence"])
    statement = sa.select(jobs).where(*same, _is_due(steady_now)).with_for_update()
    return connection.execute(statement).mappings().one_or_none()


def find_fair(connection: sa.Connection, offer: Offer) -> Row | None:
    """The first job of the tenant whose share is least used, both locked."""
    # A scalar subquery stays a seek per tenant; EXISTS may become a join over the whole backlog.
    has_work = (
        sa.select(jobs.c.seq)
        .where(jobs.c.tenant_id == accounts.c.tenant_id, IS_READY, *_suits(offer))
        .limit(1)
        .correlate(accounts)
        .scalar_subquery()
        .is_not(None)
    )
    has_place = sa.or_(accounts.c.max_running.is_(None), accounts.c.running < accounts.c.max_running)
    statement = (
        sa.select(accounts.c.tenant_id)
        .where(sa.text("accounts.queued > 0"), has_place, has_work)
        .order_by(accounts.c.virtual_time)
        .limit(1)
    )
    # Pass over tenants another worker is serving this instant; wait for one only if there is no other.
    for lock in (statement.with_for_update(skip_locked=True), statement.with_for_update()):
        tenant_id = connection.execute(lock).scalar_one_or_none()
        if tenant_id is not None:
            return _first_of(connection, tenant_id, offer)
        if connection.dialect.name == "sqlite":
            break
    return None


def _first_of(connection: sa.Connection, tenant_id: TenantId, offer: Offer) -> Row | None:
    heads = [
        head
        for model in offer.models
        if (head := connection.execute(_head(tenant_id, offer, model)).mappings().one_or_none())
    ]
    return min(heads, key=lambda row: (row["deadline_at"], row["seq"]), default=None)


def _head(tenant_id: TenantId, offer: Offer, model: str) -> sa.Select[tuple[object, ...]]:
    return (
        sa.select(jobs)
        .where(jobs.c.tenant_id == tenant_id, IS_READY, jobs.c.route == offer.route, jobs.c.model == model)
        .order_by(jobs.c.deadline_at, jobs.c.seq)
        .limit(1)
        .with_for_update(skip_locked=True)
    )


def _is_due(steady_now: float) -> sa.ColumnElement[bool]:
    return sa.or_(jobs.c.wake_at <= steady_now, jobs.c.wake_set_at > steady_now + _CLOCK_STEP_SECONDS)


def _suits(offer: Offer) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return jobs.c.route == offer.route, jobs.c.model.in_(offer.models)


def _own_account(column: sa.Column[int]) -> sa.ScalarSelect[int]:
    return sa.select(column).where(accounts.c.tenant_id == jobs.c.tenant_id).correlate(jobs).scalar_subquery()
