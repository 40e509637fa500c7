"""Writes refunds to a table of the billing database."""

from msgspec import Struct

from sluice import Pipeline, PostgresTable


class Row(Struct):
    shop: str
    amount: int


pipeline = Pipeline("refunds", workers=1)
pipeline.stream("refunds", value=Row).to(PostgresTable("refunds", connection="billing"))
