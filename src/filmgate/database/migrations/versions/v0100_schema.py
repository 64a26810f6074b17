"""The first schema: every table of this version."""

import sqlalchemy as sa
from alembic import op

revision = "0100_f647877f"
down_revision = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_accounts()
    _create_jobs()
    _index_jobs()
    _create_job_records()
    _create_workers()
    _create_tenants()
    _create_audit()


def _create_accounts() -> None:
    op.create_table(
        "accounts",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("max_running", sa.BigInteger),
        sa.Column("virtual_time", sa.Double, nullable=False, server_default="0"),
        sa.Column("queued", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("running", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("day", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("gpu_seconds_today", sa.Double, nullable=False, server_default="0"),
        sa.Column("digest_key", sa.LargeBinary),
        sa.Column("is_dedicated", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    _index("ix_accounts_dedicated", "accounts", ["tenant_id"], where="is_dedicated")
    _index("ix_accounts_share", "accounts", ["virtual_time", "tenant_id"], where="queued > 0")
    op.create_table(
        "job_counts",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("route", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, primary_key=True),
        sa.Column("version", sa.Text, primary_key=True, server_default=""),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("gpu_seconds", sa.Double, nullable=False),
        sa.Column("provider_usd", sa.Double, nullable=False, server_default="0"),
    )
    op.create_table(
        "durations",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("version", sa.Text, primary_key=True),
        sa.Column("route", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("bucket", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("observations", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("seen_at", sa.Double, nullable=False),
        sa.Column("trace_id", sa.Text),
        sa.Column("example_seconds", sa.Double),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("seq", _SERIAL, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("trace_id", sa.Text, nullable=False),
        sa.Column("span_id", sa.Text),
        sa.Column("route", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("is_cancelling", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("deadline_at", sa.Double, nullable=False),
        sa.Column("slo_class", sa.Text),
        sa.Column("slo_target", sa.Double, nullable=False),
        sa.Column("wake_at", sa.Double),
        sa.Column("wake_set_at", sa.Double),
        sa.Column("started_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.Column("expires_at", sa.Double),
        sa.Column("worker_id", sa.Text),
        sa.Column("device", sa.Text),
        sa.Column("version", sa.Text),
        sa.Column("stage", sa.Text),
        sa.Column("stage_done", sa.BigInteger),
        sa.Column("stage_total", sa.BigInteger),
        sa.Column("fraction", sa.Double),
        sa.Column("predicted_gpu_seconds", sa.Double, nullable=False),
        sa.Column("predicted", sa.Text, nullable=False),
        sa.Column("measured", sa.Text),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("sealed_prompt", sa.LargeBinary, nullable=False),
        sa.Column("screening", sa.Text, nullable=False),
        sa.Column("body_digest", sa.Text, nullable=False),
        sa.Column("prompt_hmac", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("awaits_original", sa.Boolean, nullable=False),
        sa.Column("clip", sa.Text),
        sa.Column("failure", sa.Text),
        sa.Column("routing", sa.Text),
    )


def _index_jobs() -> None:
    op.create_index("ix_jobs_tenant", "jobs", ["tenant_id", "seq"])
    op.create_index("ix_jobs_body", "jobs", ["tenant_id", "body_digest"])
    op.create_index("ix_jobs_prompt", "jobs", ["tenant_id", "prompt_hmac", "seq"])
    _index(
        "uq_jobs_idempotency",
        "jobs",
        ["tenant_id", "idempotency_key"],
        where="idempotency_key IS NOT NULL",
        unique=True,
    )
    _index(
        "ix_jobs_ready",
        "jobs",
        ["tenant_id", "route", "model", "deadline_at", "seq"],
        where="state = 'queued' AND wake_at IS NULL",
    )
    _index("ix_jobs_wake", "jobs", ["wake_at"], where="wake_at IS NOT NULL")
    _index("ix_jobs_queued", "jobs", ["created_at"], where="state = 'queued'")
    _index("ix_jobs_expires", "jobs", ["expires_at"], where="expires_at IS NOT NULL")
    _index("ix_jobs_finished", "jobs", ["model", "finished_at"], where="state = 'completed'")


def _create_job_records() -> None:
    op.create_table(
        "events",
        _job_key(),
        sa.Column("revision", sa.BigInteger, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("stage", sa.Text),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("route", sa.Text),
        sa.Column("route_reason", sa.Text),
    )
    op.create_table(
        "invocations",
        _job_key(),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("invocation", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    )
    _index("ix_invocations_open", "invocations", ["provider", "updated_at"], where="state <> 'closed'")


def _create_workers() -> None:
    op.create_table(
        "removed_invocations",
        sa.Column("provider", sa.Text, primary_key=True),
        sa.Column("invocation", sa.Text, primary_key=True),
        sa.Column("job_id", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("route", sa.Text, nullable=False),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("capacity", sa.BigInteger, nullable=False),
        sa.Column("tenants", sa.Text, nullable=False, server_default="[]"),
        sa.Column("speed", sa.Double, nullable=False, server_default="1"),
        sa.Column("gpu", sa.Text),
        sa.Column("device_seconds", sa.Text),
        sa.Column("cards", sa.Text, nullable=False),
        sa.Column("seen_at", sa.Double, nullable=False),
        sa.Column("is_draining", sa.Boolean, nullable=False),
    )
    op.create_table(
        "model_cards",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("card", sa.Text, nullable=False),
    )
    op.create_table(
        "golden_clips",
        sa.Column("version", sa.Text, primary_key=True),
        sa.Column("setup", sa.Text, primary_key=True),
        sa.Column("frames", sa.LargeBinary, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("tolerance", sa.Double, nullable=False),
    )
    op.create_table(
        "breakers",
        sa.Column("provider", sa.Text, primary_key=True),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("recent", sa.Text, nullable=False),
        sa.Column("recent_at", sa.Double, nullable=False),
        sa.Column("openings", sa.BigInteger, nullable=False),
        sa.Column("retry_at", sa.Double, nullable=False),
        sa.Column("probe", sa.BigInteger, nullable=False),
        sa.Column("probe_ends_at", sa.Double, nullable=False),
        sa.Column("retry_tokens", sa.Double, nullable=False),
        sa.Column("pace", sa.Double, nullable=False),
    )


def _create_tenants() -> None:
    op.create_table(
        "site",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("identity", sa.Text, nullable=False),
    )
    op.create_table(
        "task_claims",
        sa.Column("task", sa.Text, primary_key=True),
        sa.Column("claimed_at", sa.Double, nullable=False),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("share", sa.Text, nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("is_enabled", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("certificate", sa.Text, unique=True),
        sa.Column("screening", sa.Text, nullable=False),
        sa.Column("managed", sa.Text, nullable=False, server_default="{}"),
        sa.Column("objective", sa.Text, nullable=False, server_default="{}"),
        sa.Column("is_dedicated", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant_id", sa.Text, sa.ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant_id"])


def _create_audit() -> None:
    op.create_table(
        "slo_counts",
        sa.Column("interval_at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("class", sa.Text, primary_key=True),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("late", sa.BigInteger, nullable=False),
        sa.Column("allowed", sa.Double, nullable=False),
    )
    op.create_table(
        "job_history",
        sa.Column("width_seconds", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("interval_at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("route", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, primary_key=True),
        sa.Column("bucket", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("late", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("gpu_seconds", sa.Double, nullable=False),
        sa.Column("provider_usd", sa.Double, nullable=False),
    )
    op.create_table(
        "device_history",
        sa.Column("width_seconds", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("interval_at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("worker_id", sa.Text, primary_key=True),
        sa.Column("busy_seconds", sa.Double, nullable=False),
        sa.Column("idle_seconds", sa.Double, nullable=False),
        sa.Column("gap_seconds", sa.Double, nullable=False),
        sa.Column("gaps", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "audit_records",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("job_id", sa.Text),
        sa.Column("clip_sha256", sa.Text),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
    )
    _index("ix_audit_job", "audit_records", ["job_id"], where="job_id IS NOT NULL")
    _index("ix_audit_clip", "audit_records", ["clip_sha256"], where="clip_sha256 IS NOT NULL")
    op.create_table(
        "audit_heads",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("base_number", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("base_hash", sa.Text, nullable=False),
        sa.Column("signed_number", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("signed_hash", sa.Text, nullable=False),
        sa.Column("signed_at", sa.Double, nullable=False, server_default="0"),
        sa.Column("signature", sa.Text, nullable=False),
    )


def _job_key() -> sa.Column[int]:
    return sa.Column(
        "job_seq", sa.BigInteger, sa.ForeignKey("jobs.seq", ondelete="CASCADE"), primary_key=True
    )


def _index(name: str, table: str, columns: list[str], *, where: str, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
