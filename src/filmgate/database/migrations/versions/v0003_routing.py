"""Why a job is on its route, what a tenant allows a managed provider, and the provider's side of a job."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("routing", sa.Text))
    op.add_column("tenants", sa.Column("managed", sa.Text, nullable=False, server_default="{}"))
    op.create_table(
        "invocations",
        sa.Column("job_seq", sa.BigInteger, sa.ForeignKey("jobs.seq", ondelete="CASCADE"), primary_key=True),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("invocation", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    )
    where = sa.text("state = 'queued'")
    op.create_index(
        "ix_jobs_waiting", "jobs", ["route", "deadline_at"], sqlite_where=where, postgresql_where=where
    )
