"""Runs the versions beside this file on the connection that `migrate` hands over."""

from alembic import context

from filmgate.database.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
