"""Plays the records of a program into its pipeline, in one batch and in batches of random sizes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pytest

from sluice import Pipeline
from sluice.testing import TopologyTestDriver


class Piped(NamedTuple):
    """A record that a test pipes into a pipeline."""

    topic: str
    value: Any
    key: Any = None
    timestamp: int = 0


class Play(Protocol):
    """Pipes records into a new driver of a pipeline.

    `connections` are the URLs of databases, by name.
    """

    def __call__(
        self,
        pipeline: Pipeline,
        records: Iterable[Piped],
        connections: Mapping[str, str] = ...,
    ) -> TopologyTestDriver: ...


@pytest.fixture(params=[pytest.param("one batch", marks=pytest.mark.heavy), "random batches"])
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    """Pipes records into a new driver of a pipeline.

    Results must not depend on where the batches end.
    """
    drivers: list[TopologyTestDriver] = []

    def play_all(
        pipeline: Pipeline,
        records: Iterable[Piped],
        connections: Mapping[str, str] = MappingProxyType({}),
    ) -> TopologyTestDriver:
        driver = TopologyTestDriver(pipeline, connections=connections)
        drivers.append(driver)
        chance = random.Random(pipeline.name)
        for record in records:
            driver.pipe(*record[:3], timestamp=record.timestamp)
            if request.param == "random batches" and chance.random() < 0.1:
                driver.commit()
        return driver

    yield play_all
    for driver in drivers:
        driver.__exit__(None, None, None)


def values(driver: TopologyTestDriver, topic: str) -> list[Any]:
    """The values of all records that were written to a topic, in order."""
    return [record.value for record in driver.output(topic)]


def pairs(driver: TopologyTestDriver, topic: str) -> list[tuple[Any, Any]]:
    """The keys and values of all records that were written to a topic, in order."""
    return [(record.key, record.value) for record in driver.output(topic)]


def last_values(driver: TopologyTestDriver, topic: str) -> dict[Any, Any]:
    """Key → the last value that was written to a topic."""
    return dict(pairs(driver, topic))
