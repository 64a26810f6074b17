"""Chooses the next job to lease with two index seeks, regardless of the backlog.

For wakers, it also lists all jobs that can be leased.

Conditions of partial indexes are literals: with a bound parameter the database would not use the index.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from filmgate.database.schema import accounts, job_counts, jobs
from filmgate.jobs import JobId, JobState, Route, TenantId
from filmgate.scheduling.base import Offer
from filmgate.scheduling.fair_share import HAS_ROOM, lock_account
from filmgate.scheduling.rows import IS_DUE, IS_READY, Row, ready_heads

_SUITS = (
    jobs.c.route == sa.bindparam("route"),
    jobs.c.model.in_(sa.bindparam("models", expanding=True)),
)
# Each is added only where it applies.
_EXCLUDED: sa.BindParameter[Any] = sa.bindparam("excluded", expanding=True)
_TENANTS: sa.BindParameter[Any] = sa.bindparam("tenants", expanding=True)
_IS_SHARED_ACCOUNT = sa.not_(accounts.c.is_dedicated)
_TAKE_DUE = (
    sa.select(jobs)
    .where(jobs.c.seq == sa.bindparam("the_seq"), jobs.c.fence == sa.bindparam("the_fence"), IS_DUE)
    .with_for_update()
)
_NAMED = sa.select(jobs).where(
    jobs.c.id == sa.bindparam("the_id"),
    sa.or_(IS_READY, sa.and_(sa.text("jobs.wake_at IS NOT NULL"), IS_DUE)),
    *_SUITS,
)
_NEXT_TENANT = (
    sa.select(accounts.c.tenant_id)
    .where(
        sa.text("accounts.queued > 0"),
        HAS_ROOM,
        # A scalar subquery is one seek per tenant; EXISTS may become a join over the whole backlog.
        sa.select(jobs.c.seq)
        .where(jobs.c.tenant_id == accounts.c.tenant_id, IS_READY, *_SUITS)
        .limit(1)
        .correlate(accounts)
        .scalar_subquery()
        .is_not(None),
    )
    .order_by(accounts.c.virtual_time, accounts.c.tenant_id)
    .limit(1)
)
_NEXT_FREE_TENANT = _NEXT_TENANT.with_for_update(skip_locked=True)
_HEAD = ready_heads(*jobs.c).limit(1).with_for_update(skip_locked=True)
Channel = tuple[Route, str]  # a route and a model: a waker wakes the workers of both together
_LISTED = (jobs.c.id, jobs.c.route, jobs.c.model, jobs.c.fence)
_QUEUED = (
    sa.select(job_counts.c.tenant_id, job_counts.c.route, job_counts.c.model, job_counts.c.jobs)
    .add_columns(accounts.c.max_running, accounts.c.running)
    .join(accounts, accounts.c.tenant_id == job_counts.c.tenant_id)
    .where(job_counts.c.state == JobState.QUEUED.value, job_counts.c.jobs > 0)
    .where(sa.or_(job_counts.c.route != Route.GPU.value, _IS_SHARED_ACCOUNT))
)
_HEADS = ready_heads(*_LISTED)


def _own_account(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
    return sa.select(column).where(accounts.c.tenant_id == jobs.c.tenant_id).correlate(jobs).scalar_subquery()


_IS_SHARED_JOB = sa.not_(_own_account(accounts.c.is_dedicated))
_LIST_DUE = (
    sa.select(*_LISTED)
    .where(sa.text("jobs.wake_at IS NOT NULL"), IS_DUE)
    .where(sa.or_(jobs.c.route != Route.GPU.value, _IS_SHARED_JOB))
    .order_by(jobs.c.wake_at)
    .limit(sa.bindparam("most"))
)
_PEEK_DUE = (
    sa.select(jobs.c.seq, jobs.c.tenant_id, jobs.c.fence)
    .where(
        sa.text("jobs.wake_at IS NOT NULL"),
        IS_DUE,
        *_SUITS,
        # A lost job still counts as running; one that returns from a backoff must not exceed `max_running`.
        sa.or_(
            sa.text("jobs.state = 'running'"),
            _own_account(accounts.c.max_running).is_(None),
            _own_account(accounts.c.running) < _own_account(accounts.c.max_running),
        ),
    )
    .order_by(jobs.c.wake_at)
    .limit(1)
)


def find_named(connection: sa.Connection, offer: Offer, job_id: JobId, steady_now: float) -> Row | None:
    """This job, locked, if the offer suits it and it may start now."""
    named = {"the_id": job_id, "steady_now": steady_now} | _terms(offer)
    tenant_id = connection.execute(_NAMED.with_only_columns(jobs.c.tenant_id), named).scalar_one_or_none()
    if tenant_id is None or tenant_id in offer.excluded:
        return None
    account = lock_account(connection, tenant_id)
    if account is None or not may_take(offer, account):
        return None
    row = connection.execute(_NAMED.with_for_update(), named).mappings().one_or_none()
    return row if row is not None and _has_place(account, row) else None


def peek_due(connection: sa.Connection, offer: Offer, steady_now: float) -> Row | None:
    """A job whose lease or backoff is over, not locked yet. It bypasses fair share."""
    statement = _PEEK_DUE.where(*_limits(offer, jobs.c.tenant_id, _IS_SHARED_JOB))
    return connection.execute(statement, {"steady_now": steady_now} | _terms(offer)).mappings().one_or_none()


def take_due(connection: sa.Connection, offer: Offer, peeked: Row, steady_now: float) -> Row | None:
    """The peeked job, locked; None when it was leased meanwhile or its tenant may not run more jobs."""
    account = lock_account(connection, peeked["tenant_id"])
    if account is None or not may_take(offer, account):
        return None
    same = {"the_seq": peeked["seq"], "the_fence": peeked["fence"], "steady_now": steady_now}
    row = connection.execute(_TAKE_DUE, same).mappings().one_or_none()
    return row if row is not None and _has_place(account, row) else None


def find_fair(connection: sa.Connection, offer: Offer, awaited: TenantId | None) -> Row | None:
    """The first job of the tenant with the lowest virtual time, both locked.

    Skips tenants that another worker has locked. When all are locked, the caller ends the transaction and
    waits for one of them (`awaited`) in the next: a transaction that holds one account and waits for another
    could deadlock.
    """
    if awaited is not None:
        account = lock_account(connection, awaited)
        if account is None or _room(account) <= 0 or not may_take(offer, account):
            return None
        return _first_of(connection, awaited, offer)
    statement = _NEXT_FREE_TENANT.where(*_limits(offer, accounts.c.tenant_id, _IS_SHARED_ACCOUNT))
    tenant_id = connection.execute(statement, _terms(offer)).scalar_one_or_none()
    return None if tenant_id is None else _first_of(connection, tenant_id, offer)


def peek_fair(connection: sa.Connection, offer: Offer) -> TenantId | None:
    """The tenant that would be next if no account were locked."""
    statement = _NEXT_TENANT.where(*_limits(offer, accounts.c.tenant_id, _IS_SHARED_ACCOUNT))
    return connection.execute(statement, _terms(offer)).scalar_one_or_none()


def _first_of(connection: sa.Connection, tenant_id: TenantId, offer: Offer) -> Row | None:
    own = {"own": tenant_id, "route": offer.route}
    heads = (
        connection.execute(_HEAD, own | {"model": model}).mappings().one_or_none() for model in offer.models
    )
    return min(filter(None, heads), key=lambda row: (row["deadline_at"], row["seq"]), default=None)


def _room(account: Row) -> float:
    """How many more jobs the tenant may run."""
    return math.inf if account["max_running"] is None else account["max_running"] - account["running"]


def _has_place(account: Row, row: Row) -> bool:
    """Whether the job may start. A lost job still counts as running."""
    return row["state"] != JobState.QUEUED or _room(account) > 0


def may_take(offer: Offer, account: Row) -> bool:
    """Whether the worker serves the tenant of a locked account: `is_dedicated` cannot change meanwhile."""
    if offer.tenants:
        return account["tenant_id"] in offer.tenants
    return offer.route is not Route.GPU or not account["is_dedicated"]


def _limits(
    offer: Offer, tenant_id: sa.Column[str], is_shared: sa.ColumnElement[bool]
) -> list[sa.ColumnElement[bool]]:
    """`may_take`, and the excluded tenants, as conditions of a query."""
    found: list[sa.ColumnElement[bool]] = [tenant_id.not_in(_EXCLUDED)] if offer.excluded else []
    if offer.tenants:
        return [*found, tenant_id.in_(_TENANTS)]
    return [*found, is_shared] if offer.route is Route.GPU else found


def _terms(offer: Offer) -> dict[str, Any]:
    terms: dict[str, Any] = {"route": offer.route, "models": list(offer.models)}
    if offer.excluded:
        terms["excluded"] = list(offer.excluded)
    if offer.tenants:
        terms["tenants"] = list(offer.tenants)
    return terms


@dataclass(frozen=True, slots=True)
class ReadyJob:
    """A job that a worker of its route and model can lease now."""

    job_id: JobId
    route: Route
    model: str
    fence: int = 0


def find_ready(
    connection: sa.Connection, steady_now: float, limit: int
) -> Mapping[Channel, Sequence[ReadyJob]]:
    """Jobs that shared workers can lease now, at most `limit` per tenant, route and model.

    Jobs of dedicated tenants are left out: their workers poll. The cost grows with tenants and models only.
    """
    found: dict[Channel, list[ReadyJob]] = defaultdict(list)
    for row in connection.execute(_LIST_DUE, {"steady_now": steady_now, "most": limit}).mappings():
        _add(found, row)
    for queued in connection.execute(_QUEUED).mappings().all():
        most = min(queued["jobs"], limit, _room(queued))
        if most > 0:
            own = {
                "own": queued["tenant_id"],
                "route": queued["route"],
                "model": queued["model"],
                "most": most,
            }
            for row in connection.execute(_HEADS, own).mappings():
                _add(found, row)
    return found


def _add(found: dict[Channel, list[ReadyJob]], row: Row) -> None:
    route, model = Route(row["route"]), row["model"]
    found[route, model].append(ReadyJob(JobId(row["id"]), route, model, row["fence"]))
