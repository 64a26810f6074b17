"""Which workers are alive, and what the models they brought can render."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("cards", sa.Text, nullable=False),
        sa.Column("seen_at", sa.Double, nullable=False),
    )
