"""Runs the migrations in `versions` on the connection that `migrate` passes."""

from alembic import context

from filmgate.database.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
