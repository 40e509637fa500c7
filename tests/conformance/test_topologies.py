"""A sample of `make topologies`: the model's results, in any batches and when replayed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from tests.conformance import catalogue, topologies
from tests.conformance.catalogue import Nodes, Unfit, Values
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
def test_chains_of_operators_have_the_results_of_the_model(length: int, long_ones: list[int]) -> None:
    chance = random.Random(length)
    chains = [Topology.of_chain(catalogue.random_chain(chance, length)) for _ in range(12 if length else 0)]
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
    return limit.after(nodes, limit.after(nodes, STEPS["table map"].after(nodes, nodes.sources["t"])))


def _groups_by_null(nodes: Nodes) -> Values:
    """A row leaves its group for none, which advances the stream time of the suppress step."""
    groups = STEPS["table aggregate by text"].after(nodes, nodes.sources["t"])
    return STEPS["table suppress until a limit"].after(nodes, groups)


def _looks_up_held_rows(nodes: Nodes) -> Values:
    """A suppress step holds a row back, so the join finds the row before it. A late record changes the other side."""
    held = STEPS["table suppress until a limit"].after(nodes, nodes.sources["u"])
    return catalogue.join("left", nodes, held, nodes.sources["u"])


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
    ],
)  # fmt: skip
def test_steps_have_the_results_of_the_model(add: Callable[[Nodes], Values], inputs: list[Input]) -> None:
    nodes = Nodes()
    topology = Topology(add.__name__, nodes.nodes, {"out": add(nodes)})
    assert [problem for _, problem in Trial([topology], inputs).problems()] == []


@pytest.mark.parametrize("aggregate", ["aggregate by key", "fold by text", "cogroup"])
def test_no_join_looks_up_the_held_rows_of_an_aggregate_of_a_stream(aggregate: str) -> None:
    """While its first result is held, Kafka Streams joins with the initial aggregate, and Sluice with no row."""
    nodes = Nodes()
    totals = STEPS[aggregate].after(nodes, nodes.sources["l"])
    catalogue.join("inner", nodes, nodes.sources["u"], totals)
    held = STEPS["table suppress until a limit"].after(nodes, totals)
    with pytest.raises(Unfit, match="never sent"):
        catalogue.join("inner", nodes, nodes.sources["u"], held)
    catalogue.join("inner", nodes, nodes.sources["u"], STEPS["table aggregate by text"].after(nodes, totals))


@dataclass
class _TrialWithOtherState:
    """A trial whose state differs after several batches if one of its topologies is the third."""

    topologies: Sequence[Topology]
    inputs: Sequence[Input]
    partitions: int

    def problems(self) -> Iterator[tuple[Topology | None, str]]:
        if any(topology.name == "3" for topology in self.topologies):
            yield None, "state"


def test_a_difference_in_state_is_attributed_to_its_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topologies, "Trial", _TrialWithOtherState)
    some = [Topology(name, [], {}) for name in "12345"]
    assert [(topology.name, problem) for topology, problem in try_all(some, [])] == [("3", "state")]
