"""Points in the topics, as people and programs write them."""

from __future__ import annotations

import re

import pytest

from sluice.errors import QueryError
from sluice.values.replay_span import POINT_PATTERN, Point, Span

pytestmark = pytest.mark.unit

EIGHT = 1_795_248_000_000


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("beginning", Point()),
        ("2026-11-21T08:00:00", Point(EIGHT)),
        ("2026-11-21T08:00:00Z", Point(EIGHT)),
        ("2026-11-21 09:00:00+01:00", Point(EIGHT)),
        ("2026-11-21", Point(EIGHT - 8 * 3_600_000)),
        ("orders/0/12", Point(offsets={("orders", 0): 12})),
        (
            "my.orders-x_1/0/12, orders/3/0",
            Point(offsets={("my.orders-x_1", 0): 12, ("orders", 3): 0}),
        ),
    ],
)
def test_a_point_is_the_beginning_a_time_or_offsets(text: str, point: Point) -> None:
    assert Point.parse("from", text) == point
    assert re.search(POINT_PATTERN, text)


@pytest.mark.attack("S8", "points of a replay that are none")
@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "1200", "20261121", "orders/0", "orders/0/-1", "orders/x/1", "orders/0/1,orders/0/2",
     "a b/0/1", "orders/0/1;rm", "9999-99-99", "0001-01-01T00:00:00+23:00", "1969-12-31", "--from-topics"],
)  # fmt: skip
def test_anything_else_is_rejected(text: str) -> None:
    with pytest.raises(QueryError, match="until is not a point in the topics") as error:
        Point.parse("until", text)
    assert "TOPIC/PARTITION/OFFSET" in error.value.next_step


def test_a_span_without_points_is_everything() -> None:
    assert Span.parse("", None) == Span()


@pytest.mark.parametrize(
    ("begin", "until"),
    [("", "beginning"), ("2026-11-21", "2026-11-21"), ("2026-11-22", "2026-11-21T23:59:59")],
)
def test_a_span_that_cannot_have_records_is_rejected(begin: str, until: str) -> None:
    with pytest.raises(QueryError, match="the replay would read nothing"):
        Span.parse(begin, until)
