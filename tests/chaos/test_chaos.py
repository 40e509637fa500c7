"""A sample of `make chaos`: pipelines of random operators survive random faults with the model's results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.testing.kafka import EmbeddedKafka
from tests.chaos.world import World, try_episode


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in range(2, 12))])
def test_episodes_end_with_the_results_of_the_model(
    seed: int, spark: SparkSession, kafka: EmbeddedKafka, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    world = World(spark, kafka, tmp_path)
    happened, problems = try_episode(world, fresh_name("chaos"), seed, actions=6)
    assert problems == [], happened
