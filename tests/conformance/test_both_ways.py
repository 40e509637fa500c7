"""A pipeline writes the same bytes in the process of a test as on Spark: to topics, shards and operators' states."""

from __future__ import annotations

import itertools
import random

import pytest

from sluice import Pipeline
from tests.conformance.catalogue import SOURCES
from tests.conformance.replays import Replays, Result
from tests.conformance.topologies import Topology, add_topologies, lines, needs_spark, records


def result(topologies: list[Topology], *, on_spark: bool) -> tuple[Result, list[str]]:
    """What the topologies write for the same random records, in several batches of which one is interrupted."""
    chance = random.Random(7)
    pipeline = Pipeline("both", workers=2)
    add_topologies(pipeline, topologies)
    given = lines([*records(chance, 60, partitions=2)])
    batches = [given[begin:end] for begin, end in itertools.pairwise((0, 17, 18, 40, 60))]
    with Replays(pipeline, dict.fromkeys(SOURCES, 2), on_spark=on_spark) as replays:
        return replays.cut(batches, chance)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seeds",
    [range(31, 33), pytest.param(range(42, 60), marks=pytest.mark.heavy)],
    ids=["a few", "many"],
)
def test_a_process_writes_what_spark_writes(seeds: range) -> None:
    random_topologies = [Topology.random(seed, operators=10) for seed in seeds]
    topologies = [topology for topology in random_topologies if not needs_spark(topology)]
    assert topologies
    in_process, on_spark = (result(topologies, on_spark=way) for way in (False, True))
    assert in_process[1] == on_spark[1] == []
    by_table, by_spark = (of.info for of, _ in (in_process, on_spark))
    assert (by_table.stores, by_table.operators) == (by_spark.stores, by_spark.operators), (
        "with the same types"
    )
    assert in_process[0].output == on_spark[0].output
    assert in_process[0].stores == on_spark[0].stores
    assert in_process[0].state == on_spark[0].state
