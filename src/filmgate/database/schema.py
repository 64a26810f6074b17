"""One table design for SQLite and PostgreSQL. Times are Unix seconds; small records are JSON text.

The index of each frequent query:
  lease      ix_accounts_share (lowest virtual time), ix_jobs_ready (the first job), ix_jobs_wake
  enqueue    uq_jobs_idempotency, ix_jobs_body (retries of an SDK)
  forecast   ix_jobs_ready, ix_jobs_wake                           metrics     ix_jobs_queued (the oldest job)
  list       ix_jobs_tenant        retention   ix_jobs_expires        estimates   ix_jobs_finished
  search     ix_jobs_prompt (clips with the same prompt)              provider orphans   ix_invocations_open
  history    the keys of job_history and device_history begin with the width and the time of its intervals
  audit      ix_audit_job (records of a job), ix_audit_clip (records of a clip file)
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
    false,
    text,
)

metadata = MetaData()
# The newest migration: its number and a digest of the tables below, which a test compares (ADR 118).
REVISION = "0100_f647877f"

# SQLite numbers rows only when the key type is INTEGER.
_Serial = BigInteger().with_variant(Integer(), "sqlite")


def _partial(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


# Fair-share accounts: the weight of each tenant, its open jobs and its use today.
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
    # The HMAC key of `jobs.body_digest`, encrypted with the tenant's key; empty for a forgotten tenant.
    Column("digest_key", LargeBinary),
    # Copied from the tenant: only workers started with --tenant lease its jobs on local GPUs.
    Column("is_dedicated", Boolean, nullable=False, server_default=false()),
    _partial("ix_accounts_dedicated", "tenant_id", where="is_dedicated"),
    _partial("ix_accounts_share", "virtual_time", "tenant_id", where="queued > 0"),
)

# Counters, so that neither the backlog nor the metrics count rows. Queued and running go up and down; the
# final states (with their reason) only grow and outlive the jobs they counted.
job_counts = Table(
    "job_counts",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("route", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("state", Text, primary_key=True),
    Column("reason", Text, primary_key=True),
    # The version of the model that rendered a finished job; "" for open jobs.
    Column("version", Text, primary_key=True, server_default=""),
    Column("jobs", BigInteger, nullable=False),
    Column("gpu_seconds", Double, nullable=False),
    Column("provider_usd", Double, nullable=False, server_default="0"),
)

# Histograms of waits, stages and starts: one row per bucket, `bucket` being the index of its bound.
durations = Table(
    "durations",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("route", Text, primary_key=True),
    Column("tenant_id", Text, primary_key=True),
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    Column("observations", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    # The newest observation, and its trace if it has one: an exemplar of the metric.
    Column("seen_at", Double, nullable=False),
    Column("trace_id", Text),
    Column("example_seconds", Double),
)

jobs = Table(
    "jobs",
    metadata,
    Column("seq", _Serial, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    Column("tenant_id", Text, nullable=False),
    Column("trace_id", Text, nullable=False),
    Column("span_id", Text),  # the parent of the workers' spans; null: the trace is not exported
    Column("route", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("is_cancelling", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("deadline_at", Double, nullable=False),
    Column("slo_class", Text),  # null: the default class
    Column("slo_target", Double, nullable=False),
    # When the lease or the backoff of the job ends, and when that was set. Both are on the steady clock,
    # which starts at zero when the host does.
    Column("wake_at", Double),
    Column("wake_set_at", Double),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("expires_at", Double),
    Column("worker_id", Text),
    Column("device", Text),
    # SHA-256 of the weights of the last attempt, or the provider's model.
    Column("version", Text),
    Column("stage", Text),
    Column("stage_done", BigInteger),
    Column("stage_total", BigInteger),
    Column("fraction", Double),
    Column("predicted_gpu_seconds", Double, nullable=False),
    Column("predicted", Text, nullable=False),
    Column("measured", Text),
    Column("spec", Text, nullable=False),
    # Request text, encrypted with the tenant's key. No other column contains request text.
    Column("sealed_prompt", LargeBinary, nullable=False),
    Column("screening", Text, nullable=False),
    Column("body_digest", Text, nullable=False),  # an HMAC with the tenant's digest key
    Column("prompt_hmac", Text, nullable=False),  # the same, of the prompt only
    Column("idempotency_key", Text),
    Column("awaits_original", Boolean, nullable=False),
    Column("clip", Text),
    Column("failure", Text),
    Column("routing", Text),  # null: the default route
    Index("ix_jobs_tenant", "tenant_id", "seq"),
    Index("ix_jobs_body", "tenant_id", "body_digest"),
    Index("ix_jobs_prompt", "tenant_id", "prompt_hmac", "seq"),
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
    _partial("ix_jobs_wake", "wake_at", where="wake_at IS NOT NULL"),
    _partial("ix_jobs_queued", "created_at", where="state = 'queued'"),
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
    # Set when the event moved the job to another route.
    Column("route", Text),
    Column("route_reason", Text),
)

# The provider's side of a managed job, written before the worker waits for it: the next worker resumes the
# wait instead of paying again. `invocation` is null until the provider has answered the start.
invocations = Table(
    "invocations",
    metadata,
    Column("job_seq", BigInteger, ForeignKey("jobs.seq", ondelete="CASCADE"), primary_key=True),
    Column("provider", Text, nullable=False),
    Column("invocation", Text),
    Column("state", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    _partial("ix_invocations_open", "provider", "updated_at", where="state <> 'closed'"),
)

# What a provider may still hold of jobs that were removed, until the orphan sweep has deleted it there.
removed_invocations = Table(
    "removed_invocations",
    metadata,
    Column("provider", Text, primary_key=True),
    Column("invocation", Text, primary_key=True),
    Column("job_id", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
)

# The circuit breaker of each provider. The row lock ensures one probe at a time across processes. Times are
# on the steady clock.
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

# Live workers and the cards of the models they serve; `seen_at` is on the steady clock.
workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("route", Text, nullable=False),
    Column("models", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("capacity", BigInteger, nullable=False),
    Column("tenants", Text, nullable=False, server_default="[]"),
    Column("speed", Double, nullable=False, server_default="1"),
    Column("gpu", Text),  # the last reading of its GPU; null on a CPU
    Column("device_seconds", Text),  # how long it was busy and idle; null for a managed worker
    Column("cards", Text, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("is_draining", Boolean, nullable=False),  # it leases nothing more
)

# The last card of each model that workers have served: a model may scale from zero workers.
model_cards = Table(
    "model_cards",
    metadata,
    Column("name", Text, primary_key=True),
    Column("card", Text, nullable=False),
)

# What the canary of a model must look like on one kind of device; compressed luma, a few tens of kilobytes.
golden_clips = Table(
    "golden_clips",
    metadata,
    Column("version", Text, primary_key=True),
    Column("setup", Text, primary_key=True),
    Column("frames", LargeBinary, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("tolerance", Double, nullable=False),
)

# The store and the keyring of the installation, by the name of their setting.
site = Table(
    "site",
    metadata,
    Column("name", Text, primary_key=True),
    Column("identity", Text, nullable=False),
)

# When a process last claimed a background task that one process runs for all.
task_claims = Table(
    "task_claims",
    metadata,
    Column("task", Text, primary_key=True),
    Column("claimed_at", Double, nullable=False),
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
    Column("objective", Text, nullable=False, server_default="{}"),
    Column("is_dedicated", Boolean, nullable=False, server_default=false()),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    Column("digest", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),  # set when a newer key replaces this one
    Index("ix_api_keys_tenant", "tenant_id"),
)

# Jobs that met or missed their objective, by the 5 minutes in which they ended; interval 0 is the total.
slo_counts = Table(
    "slo_counts",
    metadata,
    Column("interval_at", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant_id", Text, primary_key=True),
    Column("class", Text, primary_key=True),
    Column("jobs", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    Column("allowed", Double, nullable=False),  # how many may be late: the sum of 1 - target
)

# What happened in each 5 minutes and in each hour, written with the end of each job. `reason` is "" for
# completed jobs; `bucket` is the histogram bucket of the seconds from acceptance to the end.
job_history = Table(
    "job_history",
    metadata,
    Column("width_seconds", Integer, primary_key=True, autoincrement=False),
    Column("interval_at", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant_id", Text, primary_key=True),
    Column("route", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("reason", Text, primary_key=True),
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    Column("jobs", BigInteger, nullable=False),
    Column("late", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("gpu_seconds", Double, nullable=False),
    Column("provider_usd", Double, nullable=False),
)

# How long devices were busy and idle in each 5 minutes and in each hour, written with heartbeats.
device_history = Table(
    "device_history",
    metadata,
    Column("width_seconds", Integer, primary_key=True, autoincrement=False),
    Column("interval_at", BigInteger, primary_key=True, autoincrement=False),
    Column("worker_id", Text, primary_key=True),
    Column("busy_seconds", Double, nullable=False),
    Column("idle_seconds", Double, nullable=False),
    Column("gap_seconds", Double, nullable=False),
    Column("gaps", BigInteger, nullable=False),
)

# The audit log. It has no foreign keys: it outlives jobs and tenants. `details` and `hash` are written once.
audit_records = Table(
    "audit_records",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("action", Text, nullable=False),
    Column("job_id", Text),
    Column("clip_sha256", Text),
    Column("details", Text, nullable=False),
    Column("hash", Text, nullable=False),
    _partial("ix_audit_job", "job_id", where="job_id IS NOT NULL"),
    _partial("ix_audit_clip", "clip_sha256", where="clip_sha256 IS NOT NULL"),
)

# The end of each tenant's chain, the last signature over it, and what retention deleted before `base_number`.
audit_heads = Table(
    "audit_heads",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("hash", Text, nullable=False),
    Column("base_number", BigInteger, nullable=False, server_default="0"),
    Column("base_hash", Text, nullable=False),
    Column("signed_number", BigInteger, nullable=False, server_default="0"),
    Column("signed_hash", Text, nullable=False),
    Column("signed_at", Double, nullable=False, server_default="0"),
    Column("signature", Text, nullable=False),
)
