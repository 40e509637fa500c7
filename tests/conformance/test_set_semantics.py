"""A sample of `make topologies DEFINITIONS=1`: every node does what its definition promises."""

from __future__ import annotations

import random

import pytest

from tests.conformance.model.differences import KAFKA_STREAMS, SLUICE, Difference
from tests.conformance.set_semantics import Sent, violations
from tests.conformance.test_differences import EXAMPLES, IDS, Example
from tests.conformance.topologies import Topology, Trial, needs_spark, records


@pytest.mark.parametrize("seed", range(0, 300, 100))
def test_the_model_does_what_definitions_promise(seed: int) -> None:
    for number in range(seed, seed + 100):
        chance = random.Random(number)
        inputs = [*records(chance, 60, distinct=chance.random() < 0.5)]
        topology = Topology.random(number, operators=12)
        sent = Sent.by_model({"spec": {"nodes": topology.nodes}, "inputs": inputs})
        assert [*violations(sent)] == [], f"topology {number}"


@pytest.mark.timeout(300)
def test_sluice_does_what_definitions_promise() -> None:
    topologies = [Topology.random(seed, operators=8) for seed in range(12)]
    some = [topology for topology in topologies if not needs_spark(topology)][:4]
    inputs = [*records(random.Random(1), 60, distinct=True)]
    assert [problem for _, problem in Trial(some, inputs, definitions=True).problems()] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_the_rules_in_which_kafka_streams_differs_break_a_definition(example: Example) -> None:
    case = example.case
    assert [*violations(Sent.by_model(case, SLUICE))] == []
    broken = [*violations(Sent.by_model(case, KAFKA_STREAMS))]
    # A row's time has no definition.
    is_of_times = example.name == "times of rows before held ones"
    is_of_times = is_of_times or example.shows is Difference.COMPUTED_AGAIN
    assert bool(broken) != is_of_times


def test_a_record_that_is_sent_unmatched_too_early_breaks_a_definition_whether_or_not_it_is_joined_later() -> (
    None
):
    (example,) = [
        example for example in EXAMPLES if example.shows is Difference.UNMATCHED_TOO_EARLY
    ]
    (broken,) = violations(Sent.by_model(example.case, KAFKA_STREAMS))
    assert "was sent unmatched, and was joined" in broken
    (broken,) = violations(
        Sent.by_model(example.case, KAFKA_STREAMS - {Difference.MATCHED_TOO_LATE})
    )
    assert "were not joined" in broken
