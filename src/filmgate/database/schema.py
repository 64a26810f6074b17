"""One table design for SQLite and PostgreSQL. Times are Unix seconds; small records are JSON text.

The hot paths and the index each one seeks:
  lease      ix_accounts_share (least used tenant), ix_jobs_ready (its first job), ix_jobs_wake (due again)
  enqueue    uq_jobs_idempotency, ix_jobs_body (an SDK's retry)
  spill      ix_jobs_waiting
  list       ix_jobs_tenant        retention   ix_jobs_expires        learning   ix_jobs_finished
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

metadata = MetaData()
REVISION = "0005"  # the newest migration; `migrate` leads here

# SQLite only numbers rows by itself when the key is spelled INTEGER.
_Serial = BigInteger().with_variant(Integer(), "sqlite")


def _partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


# A tenant as the scheduler sees it: its share, what it has in the queue, what it has used today.
accounts = Table(
    "accounts",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("weight", Double, nullable=False),
    Column("max_running", BigInteger),
    Column("virtual_time", Double, nullable=False, server_default="0"),
    Column("queued", BigInteger, nullable=False, server_default="0"),
    Column("running", BigInteger, nullable=False, server_default="0"),
    Column("day", BigInteger, nullable=False, server_default="0"),
    Column("gpu_seconds_today", Double, nullable=False, server_default="0"),
    _partial("ix_accounts_share", "virtual_time", where="queued > 0"),
)

# Counters, so that neither the backlog nor the metrics count jobs. Queued and running go up and down; the
# final states (with their reason) only go up, and outlive the jobs they counted.
loads = Table(
    "loads",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("route", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("state", Text, primary_key=True),
    Column("reason", Text, primary_key=True),
    Column("jobs", BigInteger, nullable=False),
    Column("gpu_seconds", Double, nullable=False),
)

# Histograms of waits and stages: one row a bucket, `bucket` being its place among the bounds.
durations = Table(
    "durations",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    Column("observations", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("seq", _Serial, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("tenant_id", Text, nullable=False),
    Column("trace_id", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("is_cancelling", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("deadline_at", Double, nullable=False),
    # When the job becomes leasable without waiting its turn (the end of its lease or backoff), and when
    # that was decided: both on the steady clock, which starts again when the host does.
    Column("wake_at", Double),
    Column("wake_set_at", Double),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("expires_at", Double),
    Column("worker_id", Text),
    Column("device", Text),
    Column("stage", Text),
    Column("stage_done", BigInteger),
    Column("stage_total", BigInteger),
    Column("fraction", Double),
    Column("predicted_gpu_seconds", Double, nullable=False),
    Column("predicted", Text, nullable=False),
    Column("measured", Text),
    Column("spec", Text, nullable=False),
    # Request text, encrypted with the tenant's key; nothing else in the row can be turned back into it.
    Column("sealed_prompt", LargeBinary, nullable=False),
    Column("screening", Text, nullable=False),
    Column("body_digest", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("awaits_original", Boolean, nullable=False),
    Column("clip", Text),
    Column("failure", Text),
    Column("routing", Text),  # null: at home, where everything goes unless something is wrong
    Index("ix_jobs_tenant", "tenant_id", "seq"),
    Index("ix_jobs_body", "tenant_id", "body_digest"),
    _partial(
        "uq_jobs_idempotency",
        "tenant_id",
        "idempotency_key",
        where="idempotency_key IS NOT NULL",
        unique=True,
    ),
    _partial(
        "ix_jobs_ready",
        "tenant_id",
        "route",
        "model",
        "deadline_at",
        "seq",
        where="state = 'queued' AND wake_at IS NULL",
    ),
    _partial("ix_jobs_waiting", "route", "deadline_at", where="state = 'queued'"),
    _partial("ix_jobs_wake", "wake_at", where="wake_at IS NOT NULL"),
    _partial("ix_jobs_expires", "expires_at", where="expires_at IS NOT NULL"),
    _partial("ix_jobs_finished", "model", "finished_at", where="state = 'completed'"),
)

events = Table(
    "events",
    metadata,
    Column("job_seq", BigInteger, ForeignKey("jobs.seq", ondelete="CASCADE"), primary_key=True),
    Column("revision", BigInteger, primary_key=True),
    Column("at", Double, nullable=False),
    Column("state", Text, nullable=False),
    Column("stage", Text),
    Column("attempt", BigInteger, nullable=False),
    Column("reason", Text),
    # Only where the event moved the job to another route, and why.
    Column("route", Text),
    Column("route_reason", Text),
)

# One provider job for each of ours, written before it is waited on: whoever leases the job next resumes the
# wait instead of paying again. `invocation` is null while the provider has not yet answered the start.
invocations = Table(
    "invocations",
    metadata,
    Column("job_seq", BigInteger, ForeignKey("jobs.seq", ondelete="CASCADE"), primary_key=True),
    Column("provider", Text, nullable=False),
    Column("token", Text, nullable=False),
    Column("invocation", Text),
    Column("state", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)

# The circuit breaker of each provider: one row is what makes "one probe at a time" true for all processes.
# Times are on the steady clock.
breakers = Table(
    "breakers",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("phase", Text, nullable=False),
    Column("recent", Text, nullable=False),
    Column("recent_at", Double, nullable=False),
    Column("openings", BigInteger, nullable=False),
    Column("retry_at", Double, nullable=False),
    Column("probe", BigInteger, nullable=False),
    Column("probe_ends_at", Double, nullable=False),
    Column("retry_tokens", Double, nullable=False),
    Column("pace", Double, nullable=False),
)

# Workers that ask for work, and when they last did (steady clock): no row is no GPU to wait for.
attendance = Table(
    "attendance",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("route", Text, nullable=False),
    Column("models", Text, nullable=False),
    Column("seen_at", Double, nullable=False),
)

# Workers that live, with the cards of the models they have loaded; `seen_at` is on the steady clock.
workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("device", Text, nullable=False),
    Column("cards", Text, nullable=False),
    Column("seen_at", Double, nullable=False),
)

tenants = Table(
    "tenants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("share", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("is_enabled", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("certificate", Text, unique=True),
    Column("screening", Text, nullable=False),
    Column("managed", Text, nullable=False, server_default="{}"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("digest", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Index("ix_api_keys_tenant", "tenant_id"),
)
