"""Functions called for their side effects, `peek` and `foreach`, even if no step follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, session
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive


class Sale(Struct):
    """An amount of an item."""

    item: str
    amount: int


class Noted:
    """Appends its arguments to a file, because tasks call it in other processes."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, key: str, value: Any) -> None:
        with self.file.open("a") as lines:
            lines.write(f"{key}={_plain(value)}\n")

    def read(self) -> dict[str, int]:
        """The calls, and how often each occurred."""
        return dict(Counter(self.file.read_text().splitlines() if self.file.exists() else []))


def _plain(value: Any) -> Any:
    return value.amount if isinstance(value, Sale) else value


@pytest.fixture
def noted(tmp_path: Path) -> Noted:
    return Noted(tmp_path / "noted")


def pipe(driver: TopologyTestDriver) -> None:
    for second, (key, amount) in enumerate([("a", 1), ("b", 2), ("a", 3)]):
        driver.pipe("sales", {"item": "tea", "amount": amount}, key=key, timestamp=1_000 * second)
    driver.commit()


BEFORE = {"a=1": 1, "b=2": 1, "a=3": 1}
COUNTED = {"a=1": 1, "b=1": 1, "a=2": 1}

ALONE: dict[str, tuple[Callable[[Any, Noted], Any], dict[str, int]]] = {
    "peek, and nothing else": (lambda sales, noted: sales.peek(noted), BEFORE),
    "foreach": (lambda sales, noted: sales.foreach(noted), BEFORE),
    "behind a filter": (lambda sales, noted: sales.filter("amount > 1").foreach(noted), {"b=2": 1, "a=3": 1}),
    "before a step that leads nowhere": (lambda sales, noted: sales.peek(noted).filter("amount > 1"), BEFORE),
    "behind a mapping": (
        lambda sales, noted: sales.map_values("amount * 10").foreach(noted), {"a=10": 1, "b=20": 1, "a=30": 1}
    ),
    "behind elements": (
        lambda sales, noted: sales.flat_map_values("array(amount, -amount)").foreach(noted),
        {"a=1": 1, "a=-1": 1, "b=2": 1, "b=-2": 1, "a=3": 1, "a=-3": 1},
    ),
    "behind a processor's way": (
        lambda sales, noted: sales.deduplicate("amount", within="1 day").foreach(noted), BEFORE
    ),
    "behind an aggregate": (
        lambda sales, noted: sales.group_by_key().count(store="n").to_stream().foreach(noted), COUNTED
    ),
    "behind windows": (
        lambda sales, noted: sales.group_by_key().windowed_by(session("500 ms")).count(store="n").to_stream()
        .foreach(noted),
        {"a=1": 2, "b=1": 1},
    ),
    "behind two stages": (
        lambda sales, noted: sales.deduplicate("amount", within="1 day").group_by_key().count(store="n").to_stream()
        .filter("value > 1").foreach(noted),
        {"a=2": 1},
    ),
    "behind a table": (lambda sales, noted: sales.to_table(store="newest").to_stream().foreach(noted), BEFORE),
    "beside a step that makes several records of one": (
        lambda sales, noted: (
            sales.flat_map_values("array(1, 2, 3)").to("many"), sales.map_values("amount").foreach(noted)
        ),
        BEFORE,
    ),
    "right beside such a step": (
        lambda sales, noted: (sales.flat_map_values("array(1, 2, 3)").to("many"), sales.foreach(noted)),
        BEFORE,
    ),
    "beside stores of both kinds": (
        lambda sales, noted: (
            sales.group_by_key().count(store="n"),
            sales.to_table(store="newest"),
            sales.foreach(noted),
        ),
        BEFORE,
    ),
    "before an aggregate": (lambda sales, noted: sales.peek(noted).group_by_key().count(store="n"), BEFORE),
    "before an ordered operator": (lambda sales, noted: sales.peek(noted).to_table(store="newest"), BEFORE),
}  # fmt: skip


@pytest.mark.parametrize("where", ALONE)
def test_a_function_is_called_once_for_each_record(where: str, drive: Drive, noted: Noted) -> None:
    build, called = ALONE[where]
    pipeline = Pipeline("peeking", workers=2)
    build(pipeline.stream("sales", value=Sale), noted)
    driver = drive(pipeline)
    pipe(driver)
    assert noted.read() == called
    assert driver.dead_letters() == []
