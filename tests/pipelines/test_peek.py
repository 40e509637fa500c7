"""Functions called for their side effects, `peek` and `foreach`, even if no step follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, session
from sluice.plan import plan
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


BEFORE = {"a=1": 1, "b=2": 1, "a=3": 1}
COUNTED = {"a=1": 1, "b=1": 1, "a=2": 1}

Build = Callable[[Any, Noted, str], Any]
"""Of a stream, the function, and a suffix for the names of stores and topics."""
Cases = dict[str, tuple[Build, dict[str, int]]]

# Each of the three is one pipeline, because Spark runs them in different ways.
WITHOUT_STATE: Cases = {
    "peek, and nothing else": (lambda sales, noted, _: sales.peek(noted), BEFORE),
    "foreach": (lambda sales, noted, _: sales.foreach(noted), BEFORE),
    "behind a filter": (lambda sales, noted, _: sales.filter("amount > 1").foreach(noted), {"b=2": 1, "a=3": 1}),
    "before a step that leads nowhere": (lambda sales, noted, _: sales.peek(noted).filter("amount > 1"), BEFORE),
    "behind a mapping": (
        lambda sales, noted, _: sales.map_values("amount * 10").foreach(noted), {"a=10": 1, "b=20": 1, "a=30": 1}
    ),
    "behind elements": (
        lambda sales, noted, _: sales.flat_map_values("array(amount, -amount)").foreach(noted),
        {"a=1": 1, "a=-1": 1, "b=2": 1, "b=-2": 1, "a=3": 1, "a=-3": 1},
    ),
    "beside a step that turns one record into several": (
        lambda sales, noted, n: (
            sales.flat_map_values("array(1, 2, 3)").to(f"many{n}"), sales.map_values("amount").foreach(noted)
        ),
        BEFORE,
    ),
    "right beside such a step": (
        lambda sales, noted, n: (sales.flat_map_values("array(1, 2, 3)").to(f"many{n}"), sales.foreach(noted)),
        BEFORE,
    ),
}  # fmt: skip

IN_ORDER: Cases = {
    "behind a processor's way": (
        lambda sales, noted, _: sales.deduplicate("amount", within="1 day").foreach(noted), BEFORE
    ),
    "behind windows": (
        lambda sales, noted, n: sales.group_by_key().windowed_by(session("500 ms")).count(store=f"n{n}").to_stream()
        .select_key("_key").foreach(noted),
        {"a=1": 2, "b=1": 1},
    ),
    "behind two stages": (
        lambda sales, noted, n: sales.deduplicate("amount", within="1 day").group_by_key().count(store=f"n{n}")
        .to_stream().filter("value > 1").foreach(noted),
        {"a=2": 1},
    ),
    "behind an aggregate": (
        lambda sales, noted, n: sales.group_by_key().count(store=f"n{n}").to_stream().foreach(noted), COUNTED
    ),
    "behind a table": (
        lambda sales, noted, n: sales.to_table(store=f"newest{n}").to_stream().foreach(noted), BEFORE
    ),
    "before an operator": (lambda sales, noted, n: sales.peek(noted).to_table(store=f"newest{n}"), BEFORE),
    "beside a table and an aggregate": (
        lambda sales, noted, n: (
            sales.group_by_key().count(store=f"n{n}"),
            sales.to_table(store=f"newest{n}"),
            sales.foreach(noted),
        ),
        BEFORE,
    ),
}  # fmt: skip

IN_ANY_ORDER: Cases = {
    "before an aggregate": (lambda sales, noted, n: sales.peek(noted).group_by_key().count(store=f"n{n}"), BEFORE),
    "beside an aggregate": (
        lambda sales, noted, n: (sales.group_by_key().count(store=f"n{n}"), sales.foreach(noted)), BEFORE
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "has_operators"),
    [(WITHOUT_STATE, False), (IN_ORDER, True), (IN_ANY_ORDER, False)],
    ids=["without state", "in order", "in any order"],
)
def test_a_function_is_called_once_for_each_record(
    cases: Cases, has_operators: bool, drive: Drive, tmp_path: Path
) -> None:
    pipeline = Pipeline("peeking", workers=2)
    noted = {where: Noted(tmp_path / where) for where in cases}
    for number, (where, (build, _)) in enumerate(cases.items()):
        build(pipeline.stream(f"sales_{number}", value=Sale), noted[where], f"_{number}")
    assert plan(pipeline).job.has_operators == has_operators
    driver = drive(pipeline)
    for number in range(len(cases)):
        for second, (key, amount) in enumerate([("a", 1), ("b", 2), ("a", 3)]):
            driver.pipe(
                f"sales_{number}",
                {"item": "tea", "amount": amount},
                key=key,
                timestamp=1_000 * second,
            )
    driver.commit()
    found = {where: one.read() for where, one in noted.items()}
    assert found == {where: called for where, (_, called) in cases.items()}
    assert driver.dead_letters() == []
