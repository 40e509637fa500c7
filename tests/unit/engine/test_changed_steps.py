"""A changed expression of a step without a state is a change, named with both texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.engine.run.changed_steps import changed_steps
from sluice.engine.run.published_changes import Weight, published_changes, warnings_of
from tests.support.states import States

pytestmark = pytest.mark.unit

SALES = """pipeline sales, 2 workers
  stream sales: Sale, event time of the record
    filter: amount > 0
      select: item, price = amount * 2
        topic prices
      store totals: sum(amount) by item
"""


def sales(old: str = "", new: str = "") -> str:
    return SALES.replace(old, new)


@pytest.mark.parametrize(
    ("now", "changes"),
    [
        (sales(), []),
        (
            sales("amount * 2", "amount * 3"),
            ["step 'select: item, price = amount * 2' became 'select: item, price = amount * 3'"],
        ),
        (
            sales("      store totals", "      filter: item <> 'none'\n      store totals"),
            ["step \"filter: item <> 'none'\" is new"],
        ),
        (sales("    filter: amount > 0\n"), ["step 'filter: amount > 0' was removed"]),
        # A new or removed output is a change of its own.
        (sales("        topic prices\n"), []),
        (
            sales("2 workers", "2 workers, ignores partitions that are idle for 1 min"),
            [
                "'pipeline sales, 2 workers' became "
                "'pipeline sales, 2 workers, ignores partitions that are idle for 1 min'"
            ],
        ),
    ],
)
def test_each_changed_step_is_named(now: str, changes: list[str]) -> None:
    assert changed_steps(SALES, now) == changes


def test_steps_in_another_order_are_a_change() -> None:
    first, second = "  filter: a\n", "    select: b\n"
    assert changed_steps(f"p\n{first}{second}", f"p\n{second}{first}") == [
        "the steps are in another order"
    ]


def test_a_changed_expression_is_noted_with_its_effect(tmp_path: Path) -> None:
    before = States(f"sqlite:///{tmp_path}").info(description=SALES)
    now = States(f"sqlite:///{tmp_path}").info(description=sales("amount > 0", "amount > 1"))
    (change,) = published_changes(before, now)
    assert change.weight is Weight.NOTE
    assert str(change).startswith("step 'filter: amount > 0' became 'filter: amount > 1'. Later")


def test_a_run_does_not_warn_of_expressions_that_its_author_has_changed(tmp_path: Path) -> None:
    before = States(f"sqlite:///{tmp_path}").info(description=SALES)
    now = States(f"sqlite:///{tmp_path}").info(description=sales("amount > 0", "amount > 1"))
    assert not warnings_of(before, now)
