"""How providers fare, which workers ask for work, and what an event changed about the route."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
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
    op.create_table(
        "attendance",
        sa.Column("worker_id", sa.Text, primary_key=True),
        sa.Column("route", sa.Text, nullable=False),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("seen_at", sa.Double, nullable=False),
    )
    op.add_column("events", sa.Column("route", sa.Text))
    op.add_column("events", sa.Column("route_reason", sa.Text))
