"""A sample of `make topologies`: the model's results, in any batches and when replayed."""

from __future__ import annotations

import random

import pytest

from tests.conformance import catalogue
from tests.conformance.topologies import Topology, Trial, records


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
    topologies = [Topology.of_chain(catalogue.random_chain(chance, length)) for _ in range(12 if length else 0)]
    topologies += [Topology.random(seed, operators=12) for seed in long_ones]
    problems = Trial(topologies, [*records(chance, 60)]).problems()
    assert [(topology.name, problem) for topology, problem in problems] == []
