"""By the rules of Kafka Streams, the model gives the results that Kafka Streams is known to give. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.conformance.model.differences import KAFKA_STREAMS
from tests.conformance.model.flow import Windowed
from tests.conformance.model.topology import run

Sent = list[tuple[Any, Any, int]]
Node = Mapping[str, Any]

N, G = ["field", "n"], ["field", "g"]
COUNT = [{"name": "c", "fn": "count"}]
STREAM = [{"id": "l", "op": "stream", "topic": "L"}, {"id": "r", "op": "stream", "topic": "R"}]
TABLES = [{"id": "l", "op": "table", "topic": "L"}, {"id": "r", "op": "table", "topic": "R"}]


def sent(
    sources: Sequence[Node], nodes: Sequence[Node], *inputs: tuple[str, str | None, Any, int]
) -> Sent:
    """What the last node sends."""
    records = [
        {"topic": topic, "key": key, "value": value, "ts": time}
        for topic, key, value, time in inputs
    ]
    sink = nodes[-1]["id"]
    made = run(
        {"spec": {"nodes": [*sources, *nodes]}, "inputs": records}, sink, like=KAFKA_STREAMS
    )[sink]
    return [(record.key, record.value, record.time) for record in made]


def counted(window: dict[str, Any], *times: int) -> list[tuple[int, int, int]]:
    """Start, end and count of each update of the windows of one key."""
    node = {"id": "a", "op": "aggregate", "in": "l", "window": window, "aggs": COUNT}
    made = sent(STREAM, [node], *(("L", "a", {"n": 1}, time) for time in times))
    return [(key.start, key.end, value and value["c"]) for key, value, _ in made]


@pytest.mark.parametrize(
    ("window", "times", "updates"),
    [
        (
            {"type": "tumbling", "size": 60, "grace": 15},
            (4, 54, 65, 58, 73, 75, 59),
            [(0, 60, 1), (0, 60, 2), (60, 120, 1), (0, 60, 3), (60, 120, 2), (60, 120, 3)],
        ),
        ({"type": "hopping", "size": 10, "advance": 5, "grace": 0}, (7,), [(0, 10, 1), (5, 15, 1)]),
        (
            {"type": "sliding", "size": 5000, "grace": 9000},
            (6000, 7000, 13000),
            [(1000, 6000, 1), (6001, 11001, 1), (2000, 7000, 2), (8000, 13000, 1)],
        ),
        (
            {"type": "session", "gap": 3, "grace": 5},
            (10, 14, 12, 22, 13),
            [(10, 10, 1), (14, 14, 1), (10, 10, None), (14, 14, None), (10, 14, 3), (22, 22, 1)],
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_windows_take_records_until_their_grace_ends(
    window: dict[str, Any], times: tuple[int, ...], updates: list[tuple[int, int, int]]
) -> None:
    assert counted(window, *times) == updates


def test_a_closed_window_is_sent_once() -> None:
    window = {"type": "tumbling", "size": 10, "grace": 5}
    nodes: list[Node] = [
        {"id": "a", "op": "aggregate", "in": "l", "window": window, "aggs": COUNT},
        {"id": "p", "op": "suppress", "in": "a", "type": "window_close"},
    ]
    made = sent(
        STREAM,
        nodes,
        *(("L", key, {}, time) for key, time in (("a", 1), ("a", 12), ("a", 3), ("b", 15))),
    )
    assert made == [(Windowed("a", 0, 10), {"c": 2}, 3)]


def test_a_left_join_of_streams_sends_unmatched_records_after_grace() -> None:
    join = {"id": "j", "op": "join", "type": "left", "left": "l", "right": "r"}
    nodes: list[Node] = [join | {"window": {"before": 0, "after": 4, "grace": 2}}]
    inputs = [
        ("L", "a", 1, 10),
        ("L", "b", 2, 11),
        ("R", "b", 3, 15),
        ("L", None, 4, 15),
        ("R", "c", 5, 17),
    ]
    assert sent(STREAM, nodes, *inputs) == [
        ("b", {"left": 2, "right": 3}, 15),
        (None, {"left": 4, "right": None}, 15),
        ("a", {"left": 1, "right": None}, 10),
    ]


def test_a_stream_joined_with_its_own_aggregate_sees_the_new_row() -> None:
    nodes: list[Node] = [
        {"id": "a", "op": "aggregate", "in": "l", "aggs": COUNT},
        {"id": "j", "op": "join", "type": "left", "left": "l", "right": "a"},
    ]
    made = sent(STREAM, nodes, ("L", "a", 1, 5), ("L", "a", 2, 6))
    assert made == [
        ("a", {"left": 1, "right": {"c": 1}}, 5),
        ("a", {"left": 2, "right": {"c": 2}}, 6),
    ]


def test_what_a_rekeying_sends_on_waits_until_the_record_is_done() -> None:
    nodes: list[Node] = [
        {"id": "a", "op": "aggregate", "in": "l", "group_key": ["key"], "aggs": COUNT},
        {"id": "j", "op": "join", "type": "left", "left": "l", "right": "a"},
    ]
    made = sent(STREAM, nodes, ("L", "a", 1, 5), ("L", "a", 2, 6))
    assert [value["right"] for _, value, _ in made] == [None, {"c": 1}]


def test_a_row_that_changes_its_group_updates_the_old_group_first() -> None:
    nodes: list[Node] = [{"id": "a", "op": "aggregate", "in": "l", "group_key": G, "aggs": COUNT}]
    inputs = [
        ("L", "k", {"g": "x"}, 5),
        ("L", "k", {"g": "x"}, 4),
        ("L", "k", {"g": "y"}, 7),
        ("L", "k", None, 8),
    ]
    assert sent(TABLES, nodes, *inputs) == [
        ("x", {"c": 1}, 5),
        ("x", {"c": 1}, 5),
        ("x", {"c": 0}, 7),
        ("y", {"c": 1}, 7),
        ("y", {"c": 0}, 8),
    ]


FILTERED: Node = {"id": "f", "op": "filter", "in": "l", "where": [">", N, ["const", 3]]}


def test_a_filtered_table_sends_a_tombstone_for_every_row_that_does_not_pass() -> None:
    nodes: list[Node] = [FILTERED, {"id": "s", "op": "to_stream", "in": "f"}]
    made = sent(TABLES, nodes, *(("L", "a", {"n": n}, n) for n in (1, 5, 2)))
    assert made == [("a", None, 1), ("a", {"n": 5}, 5), ("a", None, 2)]


def test_a_suppress_step_holds_back_no_tombstone_for_a_row_that_never_passed() -> None:
    nodes: list[Node] = [
        FILTERED,
        {"id": "s", "op": "suppress", "in": "f", "type": "time_limit", "ms": 0},
    ]
    made = sent(TABLES, nodes, *(("L", "a", {"n": n}, time) for time, n in enumerate((1, 5, 2, 2))))
    assert made == [("a", {"n": 5}, 1), ("a", None, 2)]


@pytest.mark.parametrize(
    ("how", "made"),
    [
        ("inner", [(1, 2), None, (3, 2), None]),
        ("left", [(1, None), (1, 2), (1, None), (3, None), (3, 2), None]),
    ],
)
def test_foreign_key_joins_follow_the_left_rows(
    how: str, made: list[tuple[int, int] | None]
) -> None:
    nodes: list[Node] = [{"id": "j", "op": "join", "type": how, "left": "l", "right": "r", "fk": G}]
    inputs: list[tuple[str, str, Any, int]] = [
        ("L", "a", {"n": 1, "g": "x"}, 1), ("R", "x", {"n": 2}, 2), ("L", "a", {"n": 1, "g": None}, 3),
        ("L", "a", {"n": 3, "g": "z"}, 4), ("L", "a", {"n": 3, "g": "x"}, 5), ("L", "a", None, 6),
    ]  # fmt: skip
    values = [value for _, value, _ in sent(TABLES, nodes, *inputs)]
    found = [
        value and (value["left"]["n"], value["right"] and value["right"]["n"]) for value in values
    ]
    assert found == made


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_foreign_key_join_hears_nothing_of_a_right_row_that_never_passed_a_filter(
    how: str,
) -> None:
    nodes: list[Node] = [
        {**FILTERED, "in": "r"},
        {"id": "j", "op": "join", "type": how, "left": "l", "right": "f", "fk": G},
    ]
    made = sent(TABLES, nodes, ("L", "a", {"n": 1, "g": "x"}, 1), ("R", "x", {"n": 2}, 2))
    assert made == (
        [] if how == "inner" else [("a", {"left": {"n": 1, "g": "x"}, "right": None}, 1)]
    )


def test_a_regrouped_windowed_table_aggregates_what_each_row_gives() -> None:
    window = {"type": "tumbling", "size": 10, "grace": 0}
    best = {"value": ["best", ["field", "all"], "c"]}
    nodes: list[Node] = [
        {"id": "a", "op": "aggregate", "in": "l", "window": window, "aggs": COUNT},
        {
            "id": "m", "op": "aggregate", "in": "a", "group_key": ["str", ["window_start"]],
            "group_value": ["struct", {"who": ["key"], "c": ["field", "c"]}],
            "aggs": [{"name": "all", "fn": "collect_sorted", "expr": ["value"]}],
        },
        {"id": "b", "op": "map_values", "in": "m", **best},
        {"id": "s", "op": "to_stream", "in": "b"},
    ]  # fmt: skip
    made = sent(
        STREAM, nodes, ("L", "x", 1, 1), ("L", "a", 1, 2), ("L", "a", 1, 3), ("L", "a", 1, 12)
    )
    assert [(key, value["who"], value["c"]) for key, value, _ in made] == [
        ("0", "x", 1), ("0", "a", 1), ("0", "a", 2), ("10", "a", 1),
    ]  # fmt: skip


def test_a_held_stream_record_finds_the_version_of_its_time() -> None:
    tables: list[Node] = [STREAM[0], TABLES[1] | {"versioned": {"history_ms": 20}}]
    nodes: list[Node] = [
        {"id": "f", "op": "filter", "in": "r", "where": [">", N, ["const", 3]]},
        {"id": "j", "op": "join", "type": "left", "left": "l", "right": "f", "grace_ms": 5},
    ]
    inputs: list[tuple[str, str, Any, int]] = [
        ("L", "a", 1, 10), ("L", "a", 2, 8), ("R", "a", {"n": 4}, 9), ("R", "a", {"n": 2}, 12),
        ("L", "b", None, 30), ("L", "b", 3, 15), ("L", "a", 4, 9), ("L", "a", 5, 12),
    ]  # fmt: skip
    made = sent(tables, nodes, *inputs)
    assert [(value["left"], value["right"]) for _, value, _ in made] == [
        (2, None), (1, {"n": 4}), (4, {"n": 4}),
    ], "a null value moves no time, and is no late record; one that is late is joined at once"  # fmt: skip


def test_cogrouped_streams_forget_sessions_for_each_other() -> None:
    window = {"type": "session", "gap": 2, "grace": 0}
    parts = [
        {"in": name, "aggs": [{"name": name, "fn": "collect_list", "expr": N}]}
        for name in ("l", "r")
    ]
    nodes: list[Node] = [
        {"id": "c", "op": "cogroup", "window": window, "parts": parts},
        {"id": "s", "op": "to_stream", "in": "c", "keep_window": True},
    ]
    made = sent(STREAM, nodes, ("L", "b", {"n": 1}, 2), ("L", "a", {}, 5), ("R", "b", {"n": 2}, 3))
    assert [(key.start, key.end, value) for key, value, _ in made] == [
        (2, 2, {"l": [1], "r": []}), (5, 5, {"l": [None], "r": []}), (3, 3, {"l": [], "r": [2]}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("window", "begun_again"),
    [
        ({"type": "tumbling", "size": 10, "grace": 0}, (0, 10, {"l": 0, "r": 1})),
        ({"type": "sliding", "size": 5, "grace": 0}, (0, 5, {"l": 0, "r": 1})),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_cogrouped_streams_forget_windows_for_each_other(
    window: dict[str, Any], begun_again: Any
) -> None:
    parts = [{"in": name, "aggs": [{"name": name, "fn": "count"}]} for name in ("l", "r")]
    nodes: list[Node] = [
        {"id": "c", "op": "cogroup", "window": window, "parts": parts},
        {"id": "s", "op": "to_stream", "in": "c", "keep_window": True},
    ]
    made = sent(STREAM, nodes, ("L", "b", {}, 5), ("L", "a", {}, 40), ("R", "b", {}, 5))
    key, value, _ = made[-1]
    assert (key.start, key.end, value) == begun_again, (
        "the store's time has passed the window's size and grace"
    )


def test_a_filter_passes_on_every_update_of_a_versioned_table() -> None:
    tables: list[Node] = [TABLES[0] | {"versioned": {"history_ms": 20}}, TABLES[1]]
    nodes: list[Node] = [
        FILTERED,
        {"id": "j", "op": "join", "type": "outer", "left": "f", "right": "r"},
    ]
    made = sent(tables, nodes, ("R", "a", 1, 5), ("L", "a", {"n": 2}, 7))
    assert made == [("a", {"left": None, "right": 1}, 5), ("a", {"left": None, "right": 1}, 7)]
