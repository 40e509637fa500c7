"""No text that an author writes as SQL ends loading in another error than Sluice's own, with its place and advice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from msgspec import Struct

from sluice import Context, Pipeline, Record
from sluice.errors import SluiceError
from sluice.plan.planner import plan
from tests.support.odd_expressions import Odd, OddExpressions


class Row(Struct):
    text: str = ""


class Silent:
    def init(self, context: Context) -> None: ...

    def process(self, record: Record) -> None: ...


def steps(pipeline: Pipeline) -> dict[str, Callable[[str], object]]:
    """Each kind of step that takes expressions, with a function that adds such a step with an expression."""
    stream, stores = pipeline.stream("in", value=Odd), iter(range(1000))
    table = pipeline.table("rows", value=Odd, store="rows")
    others = pipeline.table("others", value=Odd, store="others")
    everywhere = pipeline.global_table("everywhere", value=Odd, store="everywhere")
    counted = stream.group_by_key().aggregate(store="counted", n="count(*)", l="collect_list(line)")

    def store() -> str:
        return f"store{next(stores)}"

    return {
        "filter": stream.filter,
        "filter_not": stream.filter_not,
        "split": lambda text: stream.split({"some": text}),
        "select": lambda text: stream.select(x=text),
        "select, nested": lambda text: stream.select(x={"y": {"z": text}}),
        "map_values": stream.map_values,
        "flat_map_values": stream.flat_map_values,
        "flat_map": stream.flat_map,
        "select_key": stream.select_key,
        "with_time": stream.with_time,
        "with_headers": lambda text: stream.with_headers({"x": text}),
        "route": lambda text: stream.route(text, ["a", "b"]),
        "lookup": lambda text: stream.lookup(
            "t", connection="c", key=text, column="text", returns=Row
        ),
        "join": lambda text: stream.join(everywhere, on=text),
        "process": lambda text: stream.process(Silent, by=text, returns=Row),
        "deduplicate": lambda text: stream.deduplicate(by=text, within="1 hour"),
        "group_by": lambda text: stream.group_by(text).count(store=store()),
        "aggregate": lambda text: stream.group_by_key().aggregate(store=store(), x=text),
        "cogroup": lambda text: stream.group_by_key().cogroup(x=text).aggregate(store=store()),
        "to_table": lambda text: stream.to_table(store=store(), expires_at=text),
        "after an aggregate": lambda text: counted.to_stream().select(x=text),
        "table's filter": table.filter,
        "table's filter_not": table.filter_not,
        "table's map_values": table.map_values,
        "table's select": lambda text: table.select(x=text),
        "table's group_by": lambda text: table.group_by(text).count(store=store()),
        "table's aggregate": lambda text: table.group_by("text").aggregate(store=store(), x=text),
        "table's join": lambda text: table.join(others, on=text),
    }


def refusal(action: Callable[[], object]) -> SluiceError | None:
    try:
        action()
    except SluiceError as error:
        return error
    return None


HEAVY = [pytest.param(first, marks=pytest.mark.heavy) for first in range(500, 9000, 250)]


@pytest.mark.parametrize("first", [0, 250, *HEAVY])
def test_odd_expressions_are_read_or_refused_with_their_place(first: int) -> None:
    accepted = dict.fromkeys(steps(Pipeline("odd")), 0)
    for seed in range(first, first + 250):
        text = OddExpressions(seed).text()
        pipeline = Pipeline("odd")
        for kind, add in steps(pipeline).items():
            refused = refusal(partial(add, text))
            accepted[kind] += refused is None
            if refused is not None:
                assert "at test_odd_expressions.py:" in str(refused), (kind, text)
                assert refused.next_step, (kind, text, str(refused))
        if refused := refusal(partial(plan, pipeline)):
            assert "at test_odd_expressions.py:" in str(refused), text
    # Otherwise the test could pass although a step refuses everything.
    assert min(accepted.values()) > 0
