"""Where Sluice differs from Kafka Streams on purpose: the answers of both, for a few records each.

The answers of Kafka Streams are those of its own test driver, version 4.4.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.conformance import run as conformance
from tests.conformance.model.answers import (
    Answer,
    answer_of,
    computed,
    difference,
    recorded_rows,
    report,
)
from tests.conformance.model.differences import KAFKA_STREAMS, SLUICE, Difference

Node = Mapping[str, Any]
Input = tuple[str, str, int | None, int]
"""Topic, key, the number in the value, and time."""
Row = tuple[str, tuple[int, int] | None, Any, int]
"""Key, window, value and time of a result."""

N = ["field", "n"]
SUM = [{"name": "s", "fn": "sum", "expr": N}]
COUNT = [{"name": "c", "fn": "count"}]
STREAM = {"id": "in", "op": "stream", "topic": "in"}
TABLE = {"id": "in", "op": "table", "topic": "in"}
STREAMS = [{"id": "l", "op": "stream", "topic": "l"}, {"id": "r", "op": "stream", "topic": "r"}]
HELD = {"id": "held", "op": "suppress", "in": "in", "type": "time_limit", "ms": 10}


def all_of(table: str, aggs: Sequence[Mapping[str, Any]]) -> Node:
    """An aggregate of all rows of a table."""
    return {
        "id": "all",
        "op": "aggregate",
        "in": table,
        "group_key": ["const", "all"],
        "aggs": aggs,
    }


def windows(aggs: Sequence[Mapping[str, Any]], **window: Any) -> Node:
    """An aggregate of the stream in windows."""
    return {"id": "w", "op": "aggregate", "in": "in", "aggs": aggs, "window": window}


@dataclass(frozen=True)
class Example:
    """Records that show a difference."""

    shows: Difference
    nodes: Sequence[Node]
    inputs: Sequence[Input]
    kafka_streams: Sequence[Row]
    sluice: Sequence[Row]
    kind: Literal["table", "stream"] = "table"
    name: str = field(default="")

    @property
    def case(self) -> dict[str, Any]:
        """The records as a case with the answer of Kafka Streams."""
        inputs = []
        for topic, key, n, time in self.inputs:
            value = None if n is None else {"n": n, "g": "a"}
            inputs.append({"topic": topic, "key": key, "value": value, "ts": time})
        final = []
        for key, window, value, time in self.kafka_streams:
            final.append({"key": key, "window": window and [*window], "value": value, "ts": time})
        return {
            "id": self.name or self.shows.name,
            "feature": "differences",
            "spec": {
                "nodes": [*self.nodes],
                "sink": self.nodes[-1]["id"],
                "result_kind": self.kind,
            },
            "inputs": inputs,
            "expected": {"final": final},
        }


def value(n: int) -> dict[str, Any]:
    return {"n": n, "g": "a"}


def pair(left: int | None, right: int | None) -> dict[str, Any]:
    return {
        "left": None if left is None else value(left),
        "right": None if right is None else value(right),
    }


def joined(how: str, before: int, after: int, grace: int) -> list[Node]:
    """A join of two streams."""
    window = {"before": before, "after": after, "grace": grace}
    return [
        *STREAMS,
        {"id": "j", "op": "join", "type": how, "left": "l", "right": "r", "window": window},
    ]


EXAMPLES = [
    Example(
        Difference.FIRST_ROWS,
        [STREAM, {"id": "a", "op": "aggregate", "in": "in", "aggs": COUNT}, all_of("a", COUNT)],
        [("in", "a", 1, 1), ("in", "b", 1, 2), ("in", "c", 1, 3)],
        kafka_streams=[("all", None, {"c": 1}, 3)],
        sluice=[("all", None, {"c": 3}, 3)],
    ),
    Example(
        Difference.FIRST_ROWS,
        [
            STREAM,
            windows(SUM, type="sliding", size=10, grace=1000),
            all_of("w", [{"name": "s", "fn": "sum", "expr": ["field", "s"]}]),
        ],
        [("in", "a", 1, 10), ("in", "a", 2, 12)],
        kafka_streams=[("all", None, {"s": 5}, 12)],
        sluice=[("all", None, {"s": 6}, 12)],
        name="copied sliding windows",
    ),
    Example(
        Difference.SESSIONS_OF_ONE_INSTANT,
        [
            STREAM,
            windows(SUM, type="session", gap=10, grace=1000),
            all_of("w", [{"name": "s", "fn": "sum", "expr": ["field", "s"]}]),
        ],
        [("in", "a", 1, 10), ("in", "a", 2, 10)],
        kafka_streams=[("all", None, {"s": 4}, 10)],
        sluice=[("all", None, {"s": 3}, 10)],
    ),
    Example(
        Difference.HELD_UPDATES,
        [TABLE, HELD, all_of("held", SUM)],
        [("in", "a", 1, 0), ("in", "b", 0, 15), ("in", "a", 2, 16), ("in", "a", 3, 17), ("in", "b", 0, 40)],
        kafka_streams=[("all", None, {"s": 2}, 40)],
        sluice=[("all", None, {"s": 3}, 40)],
    ),
    Example(
        Difference.HELD_UPDATES,
        [
            STREAM,
            windows(COUNT, type="tumbling", size=10, grace=0),
            {"id": "closed", "op": "suppress", "in": "w", "type": "window_close"},
            all_of("closed", [{"name": "s", "fn": "sum", "expr": ["field", "c"]}]),
        ],
        [("in", "a", 1, time) for time in (1, 2, 11, 12, 21)],
        kafka_streams=[("all", None, {"s": 3}, 12)],
        sluice=[("all", None, {"s": 4}, 12)],
        name="final results of windows",
    ),
    Example(
        Difference.ROWS_OF_ONE_TABLE,
        [TABLE, {"id": "j", "op": "join", "type": "inner", "left": "in", "right": "in"}],
        [("in", "a", 1, 1), ("in", "a", None, 2)],
        kafka_streams=[("a", None, pair(1, 1), 1)],
        sluice=[],
    ),
    Example(
        Difference.ROWS_OF_ONE_TABLE,
        [
            TABLE,
            {"id": "j", "op": "join", "type": "inner", "left": "in", "right": "in"},
            all_of("j", [{"name": "s", "fn": "sum", "expr": ["+", ["field", "left", "n"], ["field", "right", "n"]]}]),
        ],
        [("in", "a", 1, 1), ("in", "a", 2, 2)],
        kafka_streams=[("all", None, {"s": 6}, 2)],
        sluice=[("all", None, {"s": 4}, 2)],
        name="sums of pairs",
    ),
    Example(
        Difference.CLOSED_TOO_EARLY,
        [STREAM, windows(COUNT, type="session", gap=5, grace=0)],
        [("in", "a", 1, 10), ("in", "b", 1, 15), ("in", "a", 1, 10)],
        kafka_streams=[("a", (10, 10), {"c": 1}, 10), ("b", (15, 15), {"c": 1}, 15)],
        sluice=[("a", (10, 10), {"c": 2}, 10), ("b", (15, 15), {"c": 1}, 15)],
    ),
    Example(
        Difference.CLOSED_TOO_EARLY,
        [
            STREAM,
            windows(SUM, type="sliding", size=10, grace=0),
            {"id": "closed", "op": "suppress", "in": "w", "type": "window_close"},
            {"id": "out", "op": "to_stream", "in": "closed", "keep_window": True},
        ],
        [("in", "a", 8, 5), ("in", "a", 2, 8), ("in", "a", 1, 10), ("in", "a", 4, 10), ("in", "a", 0, 11)],
        kafka_streams=[
            ("a", (0, 10), {"s": 10}, 8), ("a", (0, 10), {"s": 11}, 10), ("a", (0, 10), {"s": 15}, 10),
            ("a", (1, 11), {"s": 15}, 11),
        ],
        sluice=[("a", (0, 10), {"s": 15}, 10)],
        kind="stream",
        name="several final results",
    ),
    Example(
        Difference.UNMATCHED_TOO_EARLY,
        joined("left", 10, 0, 50),
        [("l", "z", 1, 100), ("l", "a", 2, 60), ("r", "a", 3, 55)],
        kafka_streams=[("a", None, pair(2, None), 60), ("a", None, pair(2, 3), 60)],
        sluice=[("a", None, pair(2, 3), 60)],
        kind="stream",
    ),
    Example(
        Difference.MATCHED_TOO_LATE,
        joined("left", 10, 10, 0),
        [("l", "a", 1, 100), ("l", "z", 2, 111), ("r", "a", 3, 105)],
        kafka_streams=[("a", None, pair(1, None), 100), ("a", None, pair(1, 3), 105)],
        sluice=[("a", None, pair(1, None), 100)],
        kind="stream",
    ),
    Example(
        Difference.FORGOTTEN_TOO_EARLY,
        joined("inner", 0, 4, 0),
        [("l", "a", 1, 100), ("l", "z", 2, 104), ("r", "a", 3, 104)],
        kafka_streams=[],
        sluice=[("a", None, pair(1, 3), 104)],
        kind="stream",
    ),
    Example(
        Difference.FORGOTTEN_TOO_EARLY,
        joined("left", 0, 4, 0),
        [("l", "a", 1, 100), ("l", "z", 2, 104), ("r", "a", 3, 104), ("l", "z", 4, 110)],
        kafka_streams=[("a", None, pair(1, None), 100), ("z", None, pair(2, None), 104)],
        sluice=[("a", None, pair(1, 3), 104), ("z", None, pair(2, None), 104)],
        kind="stream",
        name="forgotten and unmatched",
    ),
    Example(
        Difference.STALE_ANSWERS,
        [
            TABLE,
            {"id": "sums", "op": "reduce", "in": "in", "group_key": ["key"]},
            {"id": "j", "op": "join", "type": "inner", "left": "sums", "right": "in", "fk": ["field", "g"]},
        ],
        [("in", "a", 7, 108), ("in", "a", None, 136)],
        kafka_streams=[("a", None, pair(7, 7), 108)],
        sluice=[],
    ),
    Example(
        Difference.LOOKED_UP_TOO_EARLY,
        [
            TABLE,
            {"id": "few", "op": "filter", "in": "in", "where": [">", N, ["const", 0]]},
            HELD,
            {"id": "j", "op": "join", "type": "outer", "left": "few", "right": "held"},
        ],
        [("in", "x", 4, 113), ("in", "y", 5, 120)],
        kafka_streams=[("x", None, pair(4, 4), 113), ("y", None, pair(5, 5), 120)],
        sluice=[("x", None, pair(4, None), 113), ("y", None, pair(5, None), 120)],
    ),
    Example(
        Difference.LOOKED_UP_TOO_EARLY,
        [
            TABLE,
            HELD | {"ms": 2},
            {"id": "r", "op": "table", "topic": "r"},
            {"id": "j", "op": "join", "type": "inner", "left": "held", "right": "r"},
        ],
        [("in", "a", 1, 8), ("in", "b", 1, 10), ("in", "a", 2, 10), ("r", "a", 3, 5)],
        kafka_streams=[("a", None, pair(1, 3), 5)],
        sluice=[("a", None, pair(1, 3), 8)],
        name="times of rows before held ones",
    ),
    Example(
        Difference.COMPUTED_AGAIN,
        [
            TABLE,
            {"id": "l", "op": "table", "topic": "l"},
            {"id": "r", "op": "table", "topic": "r"},
            {"id": "both", "op": "join", "type": "outer", "left": "l", "right": "in"},
            {"id": "first", "op": "map_values", "in": "both", "value": ["field", "right"]},
            {"id": "j", "op": "join", "type": "inner", "left": "first", "right": "r"},
        ],
        [("in", "a", 1, 119), ("l", "a", 2, 120), ("l", "a", None, 130), ("r", "a", 3, 123)],
        kafka_streams=[("a", None, pair(1, 3), 123)],
        sluice=[("a", None, pair(1, 3), 130)],
    ),
]  # fmt: skip
IDS = [example.name or example.shows.name for example in EXAMPLES]


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_the_model_gives_both_answers(example: Example) -> None:
    case = example.case
    assert difference(recorded_rows(case), computed(case, KAFKA_STREAMS)) == ""
    final = [
        {"key": key, "window": window, "value": row, "ts": time}
        for key, window, row, time in example.sluice
    ]
    assert (
        difference(recorded_rows(case | {"expected": {"final": final}}), computed(case, SLUICE))
        == ""
    )


@pytest.mark.parametrize("cuts", ["one", "each"])
@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_sluice_gives_its_own_answer(example: Example, cuts: str) -> None:
    answer = answer_of(example.case)
    assert conformance.run([example.case | {"expected": {"final": answer.rows}}], cuts) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_a_case_with_such_an_answer_is_compared_with_the_model(example: Example) -> None:
    answer = answer_of(example.case)
    assert (answer.is_corrected, [*answer.because_of]) == (True, [example.shows])
    assert report([answer, Answer([])])[1:] == [f"  1: {example.shows.value}"]


def test_a_case_with_a_wrong_answer_is_compared_with_it() -> None:
    case = EXAMPLES[0].case | {
        "expected": {"final": [{"key": "all", "window": None, "value": {"c": 2}, "ts": 3}]}
    }
    assert answer_of(case) == Answer(case["expected"]["final"])


def test_the_documentation_has_a_section_on_every_difference() -> None:
    page = Path(__file__).parents[2].joinpath("docs/differences.md").read_text()
    assert {example.shows for example in EXAMPLES} == {*Difference}
    for one in Difference:
        assert f"\n## {one.value}\n" in page
