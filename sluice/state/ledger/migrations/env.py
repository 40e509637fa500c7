"""Alembic runs this file to migrate a ledger in the transaction of the given connection."""

from alembic import context

from sluice.state.ledger.migrations import TABLE

# SQLite cannot change a column. With `render_as_batch`, Alembic generates migrations that use
# `batch_alter_table`, which copies the whole table.
context.configure(
    connection=context.config.attributes["connection"], version_table=TABLE, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
