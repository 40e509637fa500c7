"""A sample of `make topologies`: the model's results, in any batches and when replayed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from tests.conformance import catalogue, topologies
from tests.conformance.catalogue import Nodes, Values
from tests.conformance.topologies import Input, Topology, Trial, records, try_all


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("length", "long_ones"),
    [
        pytest.param(2, [9], id="pairs, and a random topology"),
        pytest.param(3, [], id="triples", marks=pytest.mark.heavy),
        pytest.param(
            0,
            [10, 11, 12],
            id="random topologies",
            marks=(pytest.mark.heavy, pytest.mark.spark),
        ),
    ],
)
def test_chains_of_operators_have_the_results_of_the_model(
    length: int, long_ones: list[int]
) -> None:
    chance = random.Random(length)
    chains = [
        Topology.of_chain(catalogue.random_chain(chance, length))
        for _ in range(12 if length else 0)
    ]
    chains += [Topology.random(seed, operators=12) for seed in long_ones]
    assert [*Trial(chains, [*records(chance, 60)]).problems()] == []


STEPS = {step.name: step for step in catalogue.STEPS}


def _refers_to_its_own_rows(nodes: Nodes) -> Values:
    """A record changes a left row of the join, and deletes the right row of the same foreign key."""
    rows = nodes.sources["u"]
    sums = STEPS["table reduce"].after(nodes, rows)
    return catalogue.join("inner", nodes, sums, rows, **catalogue.foreign(sums))


def _refers_to_filtered_rows(nodes: Nodes) -> Values:
    rows = nodes.sources["u"]
    few = STEPS["table filter"].after(nodes, nodes.sources["t"])
    return catalogue.join("left", nodes, rows, few, **catalogue.foreign(rows))


def _filters_pairs(nodes: Nodes) -> Values:
    """The filter passes the pair, but not the old pair that the deletion takes back."""
    rows = nodes.sources["u"]
    pairs = catalogue.join("left", nodes, rows, rows)
    return catalogue.join("outer", nodes, STEPS["table filter"].after(nodes, pairs), rows)


def _joins_rows_that_are_deleted_twice(nodes: Nodes) -> Values:
    """An outer join of a table with itself sends the deletion of each side, and the join behind it both deletions."""
    rows = STEPS["table filter"].after(nodes, nodes.sources["t"])
    pairs = catalogue.join("outer", nodes, rows, rows)
    joined = catalogue.join(
        "left", nodes, catalogue.join("outer", nodes, nodes.sources["u"], pairs), nodes.sources["u"]
    )
    return STEPS["table to_stream"].after(nodes, joined)


def _suppresses_twice(nodes: Nodes) -> Values:
    """The stream time of the second suppress step is that of the updates that the first one sends."""
    limit = STEPS["table suppress until a limit"]
    return limit.after(
        nodes, limit.after(nodes, STEPS["table map"].after(nodes, nodes.sources["t"]))
    )


def _groups_by_null(nodes: Nodes) -> Values:
    """A row leaves its group for none, which advances the stream time of the suppress step."""
    groups = STEPS["table aggregate by text"].after(nodes, nodes.sources["t"])
    return STEPS["table suppress until a limit"].after(nodes, groups)


def _looks_up_held_rows(nodes: Nodes) -> Values:
    """A suppress step holds a row back, so the join finds the row before it. A late record changes the other side."""
    held = STEPS["table suppress until a limit"].after(nodes, nodes.sources["u"])
    return catalogue.join("left", nodes, held, nodes.sources["u"])


def _looks_up_a_row_that_is_held_next(nodes: Nodes) -> Values:
    """The join gets a row of an aggregate, and looks up the same row behind a suppress step, which holds it back."""
    totals = STEPS["table fold"].after(nodes, nodes.sources["t"])
    few = STEPS["table filter"].after(nodes, totals)
    return catalogue.join(
        "outer", nodes, few, STEPS["table suppress until a limit"].after(nodes, totals)
    )


def _looks_up_a_first_row_that_is_held(nodes: Nodes) -> Values:
    """While the first row of an aggregate of a stream is held back, a join finds no row."""
    totals = STEPS["fold by key"].after(nodes, nodes.sources["l"])
    held = STEPS["table suppress until a limit"].after(nodes, totals)
    return catalogue.join("left", nodes, nodes.sources["u"], held)


def _adds_up_held_rows(nodes: Nodes) -> Values:
    """Several updates of a row become one update of its group."""
    held = STEPS["table suppress until a limit"].after(nodes, nodes.sources["t"])
    return STEPS["table fold"].after(nodes, held)


def _adds_up_pairs_of_one_table(nodes: Nodes) -> Values:
    """A record changes both sides of the join, and deletes its pair."""
    pairs = catalogue.join("inner", nodes, nodes.sources["t"], nodes.sources["t"])
    return STEPS["table fold"].after(nodes, pairs)


def _adds_up_sliding_windows(nodes: Nodes) -> Values:
    """Windows that begin as copies of other windows."""
    windows = STEPS["sliding fold"].after(nodes, nodes.sources["l"])
    return STEPS["windows by start"].after(nodes, windows)


def _adds_up_sessions(nodes: Nodes) -> Values:
    """A record at the very time of a session that is one instant long."""
    windows = STEPS["session fold"].after(nodes, nodes.sources["l"])
    return STEPS["windows by start"].after(nodes, windows)


def _waits_for_grace(nodes: Nodes) -> Values:
    """A record that comes out of order, and its match."""
    return catalogue.join(
        "left", nodes, nodes.sources["l"], nodes.sources["r"], **catalogue.within(10, 0, 50)
    )


def _joins_earlier_rows(nodes: Nodes) -> Values:
    """The stream was declared before the table of the same records, so it joins the row before each record."""
    mapped = STEPS["stream map"].after(nodes, nodes.sources["l"])
    return catalogue.join("left", nodes, mapped, STEPS["to_table"].after(nodes, nodes.sources["l"]))


def _joins_earlier_rows_when_time_goes_on(nodes: Nodes) -> Values:
    """A record lets the join of streams send an earlier record, before the record's row is in the table."""
    stream, of_table = nodes.sources["r"], nodes.sources["l"]
    looked_up = catalogue.join("left", nodes, of_table, nodes.sources["u"])
    pairs = catalogue.join("outer", nodes, stream, looked_up, **catalogue.within(0, 4, 5))
    return catalogue.join("left", nodes, pairs, STEPS["to_table"].after(nodes, of_table))


def _given(topic: str, key: str, n: int | None, g: str | None, time: int) -> Input:
    """A record with the value `n`. Without a value, it deletes its key."""
    value = None if n is None else {"n": n, "g": g}
    return {"topic": topic, "key": key, "value": value, "ts": time, "partition": 0}


def _updates(topic: str, *values: tuple[int | None, int]) -> list[Input]:
    """Records of one key: their values and times."""
    return [_given(topic, "a", n, "", time) for n, time in values]


@pytest.mark.parametrize(
    ("add", "inputs"),
    [
        (_refers_to_its_own_rows, [_given("u", "a", 7, "a", 108), _given("u", "a", None, "", 136)]),
        (_refers_to_filtered_rows, [_given("u", "x", 4, "a", 86), _given("t", "a", 0, "", 108)]),
        (_filters_pairs, [_given("u", "", 7, "x", 5), _given("u", "", None, "", 84)]),
        (_joins_earlier_rows, [_given("l", "x", 1, "", 1), _given("l", "x", 2, "", 2)]),
        (_joins_earlier_rows_when_time_goes_on, [_given("r", "x", 8, "", 149), _given("l", "x", 7, "", 174)]),
        (_groups_by_null, [_given("t", "x", 1, "", 114), _given("t", "x", -3, None, 157)]),
        (_joins_rows_that_are_deleted_twice, [_given("t", "a", 8, "a", 0), _given("t", "a", None, "", 0)]),
        (_suppresses_twice, [_given("t", "b", 8, "", 153), _given("t", "x", 3, "", 130)]),
        (
            _looks_up_held_rows,
            [
                _given("u", "a", None, "", 112), _given("u", "a", -3, "", 124),
                _given("u", "a", 8, "", 138), _given("u", "a", 5, None, 118),
            ],
        ),
        (_looks_up_a_row_that_is_held_next, [_given("t", "x", 4, "b", 113)]),
        (_looks_up_a_first_row_that_is_held, [_given("l", "a", 1, "", 10), _given("u", "a", 2, "", 11)]),
        (_adds_up_held_rows, _updates("t", (1, 10), (2, 30), (3, 31), (4, 60), (5, 90))),
        (_adds_up_pairs_of_one_table, _updates("t", (3, 1), (4, 2), (None, 3))),
        (_adds_up_sliding_windows, _updates("l", (1, 10), (2, 12), (3, 11), (4, 13))),
        (_adds_up_sessions, _updates("l", (1, 10), (2, 10), (3, 12))),
        (_waits_for_grace, [_given("l", "z", 1, "", 100), _given("l", "a", 2, "", 60), _given("r", "a", 3, "", 55)]),
    ],
)  # fmt: skip
def test_steps_have_the_results_of_the_model(
    add: Callable[[Nodes], Values], inputs: list[Input]
) -> None:
    nodes = Nodes()
    topology = Topology(add.__name__, nodes.nodes, {"out": add(nodes)})
    assert [problem for _, problem in Trial([topology], inputs).problems()] == []


@dataclass
class _TrialWithOtherState:
    """A trial whose state differs after several batches if one of its topologies is the third."""

    topologies: Sequence[Topology]
    inputs: Sequence[Input]
    partitions: int
    definitions: bool

    def problems(self) -> Iterator[tuple[Topology | None, str]]:
        if any(topology.name == "3" for topology in self.topologies):
            yield None, "state"


def test_a_difference_in_state_is_attributed_to_its_topology(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topologies, "Trial", _TrialWithOtherState)
    some = [Topology(name, [], {}) for name in "12345"]
    assert [(topology.name, problem) for topology, problem in try_all(some, [])] == [("3", "state")]
