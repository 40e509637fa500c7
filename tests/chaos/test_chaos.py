"""A sample of `make chaos`: pipelines of random operators survive random faults with the model's results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.testing.kafka import EmbeddedKafka
from tests.chaos.actions import ACTIONS, chosen, compacted
from tests.chaos.world import Choice, World, try_episode

Try = Callable[[int, Choice], None]


@pytest.fixture
def try_one(
    spark: SparkSession, kafka: EmbeddedKafka, fresh_name: Callable[[str], str], postgres: str, tmp_path: Path
) -> Try:
    def run(seed: int, actions: Choice) -> None:
        happened, problems = try_episode(World(spark, kafka, tmp_path, postgres), fresh_name("chaos"), seed, actions)
        assert problems == [], happened

    return run


@pytest.mark.timeout(600)
def test_an_episode_with_all_actions_ends_with_the_results_of_the_model(try_one: Try) -> None:
    try_one(43, lambda _: [*ACTIONS, compacted])


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 12))
def test_random_episodes_end_with_the_results_of_the_model(try_one: Try, seed: int) -> None:
    try_one(seed, partial(chosen, count=6))
