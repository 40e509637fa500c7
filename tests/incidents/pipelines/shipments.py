"""Writes shipments to a table of the warehouse."""

from msgspec import Struct

from sluice import Pipeline, PostgresTable


class Row(Struct):
    shop: str
    amount: int


pipeline = Pipeline("shipments", workers=1)
pipeline.stream("shipments", value=Row).to(PostgresTable("shipments", connection="warehouse"))
