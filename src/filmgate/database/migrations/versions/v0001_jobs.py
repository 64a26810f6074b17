"""Jobs, their events, and the accounts and loads that share out the GPU."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_accounts()
    _create_jobs()
    op.create_table(
        "events",
        sa.Column("job_seq", sa.BigInteger, sa.ForeignKey("jobs.seq", ondelete="CASCADE"), primary_key=True),
        sa.Column("revision", sa.BigInteger, primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("stage", sa.Text),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text),
    )


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
    )
    _index("ix_accounts_share", "accounts", ["virtual_time"], where="queued > 0")
    op.create_table(
        "loads",
        sa.Column("tenant_id", sa.Text, primary_key=True),
        sa.Column("route", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, primary_key=True),
        sa.Column("jobs", sa.BigInteger, nullable=False),
        sa.Column("gpu_seconds", sa.Double, nullable=False),
    )
    op.create_table(
        "durations",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("bucket", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("observations", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("seq", _SERIAL, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("tenant_id", "trace_id", "route", "model")),
        sa.Column("state", sa.Text, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("revision", "attempt", "fence")),
        sa.Column("is_cancelling", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("deadline_at", sa.Double, nullable=False),
        *(sa.Column(name, sa.Double) for name in ("wake_at", "wake_set_at")),
        *(sa.Column(name, sa.Double) for name in ("started_at", "finished_at", "expires_at")),
        *(sa.Column(name, sa.Text) for name in ("worker_id", "device", "stage")),
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
        sa.Column("idempotency_key", sa.Text),
        sa.Column("awaits_original", sa.Boolean, nullable=False),
        sa.Column("clip", sa.Text),
        sa.Column("failure", sa.Text),
    )
    op.create_index("ix_jobs_tenant", "jobs", ["tenant_id", "seq"])
    op.create_index("ix_jobs_body", "jobs", ["tenant_id", "body_digest"])
    keyed = "idempotency_key IS NOT NULL"
    _index("uq_jobs_idempotency", "jobs", ["tenant_id", "idempotency_key"], where=keyed, unique=True)
    ready = ["tenant_id", "route", "model", "deadline_at", "seq"]
    _index("ix_jobs_ready", "jobs", ready, where="state = 'queued' AND wake_at IS NULL")
    _index("ix_jobs_wake", "jobs", ["wake_at"], where="wake_at IS NOT NULL")
    _index("ix_jobs_expires", "jobs", ["expires_at"], where="expires_at IS NOT NULL")
    _index("ix_jobs_finished", "jobs", ["model", "finished_at"], where="state = 'completed'")


def _index(name: str, table: str, columns: list[str], *, where: str, unique: bool = False) -> None:
    clause = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=clause, postgresql_where=clause)
