"""Totals of a batch are added to a shard a few rows at a time, so that a large batch needs little memory."""

from __future__ import annotations

import pytest
from msgspec import Struct

from sluice import Pipeline, tumbling
from sluice.state.shard import row_pages
from tests.pipelines.conftest import Drive

MINUTE = 60_000


class Sale(Struct):
    """A sale in a shop."""

    amount: int


def sums(drive: Drive) -> tuple[dict[object, object], list[tuple[str | None, object]]]:
    """The store and the output after two batches of sales, the second of which has old and new keys and windows."""
    pipeline = Pipeline("sales", workers=1)
    sales = pipeline.stream("sales", value=Sale)
    by_shop = sales.group_by_key()
    by_shop.aggregate(store="sums", sum="sum(amount)").to("sums_of_shops")
    by_shop.windowed_by(tumbling("1 minute", grace="1 hour")).count(store="counts")
    driver = drive(pipeline)
    for batch in range(2):
        for number in range(7):
            shop = f"shop-{number * (batch + 1) % 5}"
            driver.pipe("sales", {"amount": 10**batch}, key=shop, timestamp=number % 3 * MINUTE)
        driver.commit()
    stores = {**driver.store("sums"), **driver.store("counts")}
    return stores, [(record.key, record.value) for record in driver.output("sums_of_shops")]


def test_pages_have_the_results_of_one_page(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    stores, output = sums(drive)
    assert stores["shop-1"] == {"sum": 12}
    for rows in (1, 2, 3):
        monkeypatch.setattr(row_pages, "PAGE_ROWS", rows)
        assert sums(drive) == (stores, output)
