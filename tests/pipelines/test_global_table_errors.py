"""Errors while a global table is read: the same policies and counts, whatever reads the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

from sluice import GlobalTable, Pipeline, Record, Stream, ValueContext, ValueProcessor
from sluice.errors import RecordFailed
from tests.pipelines.conftest import Drive


class Shop(Struct):
    city: str
    floors: int


class CityOf(ValueProcessor[str]):
    def init(self, context: ValueContext) -> None:
        self.context = context
        self.shops = context.table("shops")

    def process(self, record: Record[str]) -> None:
        self.context.forward(str(self.shops.get(record.value)))


def processed(shops: GlobalTable[Shop], visits: Stream[str]) -> None:
    of_city = visits.process_values(CityOf, tables={"shops": shops}, returns=str)
    of_city.output.to("cities")


USES: dict[str, Callable[[GlobalTable[Shop], Stream[str]], Any]] = {
    "only queried": lambda shops, visits: visits.to("copied"),
    "joined with a stream": lambda shops, visits: visits.join(shops, on="value").to("joined"),
    "joined with a table": lambda shops, visits: (
        visits.group_by_key().count(store="visits").join(shops).to("counted")
    ),
    "read by a processor": processed,
    "filtered": lambda shops, visits: shops.filter("floors > 0").to("filtered"),
}
UNREADABLE: dict[str, tuple[bytes | None, Any]] = {
    "malformed": (b"a", b"{"),
    "contract": (b"a", {"city": 3}),
    "empty_value": (b"a", b""),
    "out_of_range": (b"a", {"city": "Ulm", "floors": 2**70}),
    "key_not_utf8": (b"\xff", {"city": "Ulm", "floors": 1}),
    "key_too_long": (b"x" * 2_000, {"city": "Ulm", "floors": 1}),
}
"""Reason → key and value of a record that is rejected for this reason."""
uses = pytest.mark.parametrize("use", USES.values(), ids=USES.keys())


@uses
@pytest.mark.parametrize(
    ("on_error", "prefix"), [("dead_letter", "dead_letter"), ("skip", "dropped")]
)
def test_unreadable_records_of_a_global_table_are_counted_by_reason(
    drive: Drive, use: Callable[..., Any], on_error: Any, prefix: str
) -> None:
    pipeline = Pipeline("shops", workers=2)
    shops = pipeline.global_table("shops", value=Shop, on_error=on_error)
    use(shops, pipeline.stream("visits", value=str))
    driver = drive(pipeline)
    driver.pipe("shops", {"city": "Ulm", "floors": 3}, key="a")
    for key, value in UNREADABLE.values():
        driver.pipe("shops", value, key=key)
    for value in ({"city": "Ulm", "floors": 3}, None):
        driver.pipe("shops", value, key=None)
    driver.commit()
    counts = driver.counts()
    assert {reason: counts[f"{prefix}/{reason}"] for reason in UNREADABLE} == dict.fromkeys(
        UNREADABLE, 1
    )
    assert (counts["read"], counts["applied"]) == (9, 1)
    assert (counts["dropped/null_key"], counts["null_key/shops"]) == (2, 2)
    assert driver.store("shops") == {"a": {"city": "Ulm", "floors": 3}}
    reasons = {letter.headers["sluice.reason"] for letter in driver.dead_letters()}
    assert reasons == (UNREADABLE.keys() if on_error == "dead_letter" else set())


@uses
@pytest.mark.parametrize("reason", UNREADABLE)
def test_an_unreadable_record_ends_the_run_if_the_author_wants_it(
    drive: Drive, use: Callable[..., Any], reason: str
) -> None:
    pipeline = Pipeline("shops", workers=2)
    shops = pipeline.global_table("shops", value=Shop, on_error="fail")
    use(shops, pipeline.stream("visits", value=str))
    driver = drive(pipeline)
    driver.pipe("shops", {"city": "Ulm", "floors": 3}, key=None)
    driver.commit()
    key, value = UNREADABLE[reason]
    driver.pipe("shops", value, key=key)
    with pytest.raises(RecordFailed, match=f"shops, partition 0, offset 1: {reason}: "):
        driver.commit()


def test_a_record_without_a_key_is_dropped_only_if_its_value_can_be_read(drive: Drive) -> None:
    pipeline = Pipeline("shops", workers=1)
    shops = pipeline.global_table("shops", value=Shop)
    pipeline.stream("visits", value=str).join(shops, on="value").to("joined")
    driver = drive(pipeline)
    driver.pipe("shops", b"{", key=None)
    (letter,) = driver.dead_letters()
    assert letter.headers["sluice.reason"] == "malformed"
    assert driver.counts().get("dropped/null_key", 0) == 0


def test_a_key_that_the_authors_decoder_makes_null_is_dropped(drive: Drive) -> None:
    pipeline = Pipeline("shops", workers=1)
    key: Any = lambda data: None if data == b"none" else data.decode()  # noqa: E731
    shops = pipeline.global_table("shops", value=Shop, key=key)
    pipeline.stream("visits", value=str)
    shops.filter("floors > 0").to("filtered")
    driver = drive(pipeline)
    for name in ("none", "a"):
        driver.pipe("shops", {"city": "Ulm", "floors": 3}, key=name)
    assert [record.key for record in driver.read("filtered")] == ["a"]
    assert driver.counts()["null_key/shops"] == 1


def test_most_records_of_a_global_table_unreadable_end_the_run(drive: Drive) -> None:
    pipeline = Pipeline("shops", workers=1)
    shops = pipeline.global_table("shops", value=Shop)
    pipeline.stream("visits", value=str).join(shops, on="value").to("joined")
    driver = drive(pipeline)
    for _ in range(100):
        driver.pipe("shops", b"{", key="a")
    with pytest.raises(Exception, match="100 of the 100 records that were read were rejected"):
        driver.commit()
