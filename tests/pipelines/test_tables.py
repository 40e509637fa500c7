"""Tables that go straight to a topic."""

from __future__ import annotations

from msgspec import Struct

from sluice import Pipeline
from tests.pipelines.conftest import Drive


class Shop(Struct):
    city: str
    floors: int


def test_a_tables_record_without_a_key_changes_no_row_and_is_written_nowhere(drive: Drive) -> None:
    pipeline = Pipeline("towns", workers=1)
    shops = pipeline.table("shops", value=Shop)
    shops.filter("floors > 1").to("tall")
    shops.select("city").to("cities")
    driver = drive(pipeline)
    for key in ("a", None, "b"):
        driver.pipe("shops", {"city": "Ulm", "floors": 3}, key=key)
    assert [record.key for record in driver.read("tall")] == ["a", "b"]
    assert [record.key for record in driver.read("cities")] == ["a", "b"]
