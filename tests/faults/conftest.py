"""Scenarios: what is injected stands in their marker, what was seen they say themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.engine.conftest import start
from tests.faults.world import World, world

__all__ = ["start"]

Seen = Callable[[str], None]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes minutes is for `make faults`."""
    if os.environ.get("FAULTS") != "all":
        heavy = [item for item in items if item.get_closest_marker("heavy")]
        config.hook.pytest_deselected(items=heavy)
        items[:] = [item for item in items if item not in heavy]


@pytest.fixture(autouse=True)
def _told(request: pytest.FixtureRequest) -> None:
    if marker := request.node.get_closest_marker("fault"):
        request.node.user_properties.extend(zip(("fault", "injected"), marker.args, strict=True))


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Seen:
    """Takes down what was seen: `seen("nothing was counted twice")`."""
    return lambda what: request.node.user_properties.append(("seen", what))


@pytest.fixture
def orders() -> Iterator[World]:
    """The orders pipeline with a broker of its own, driven by processes."""
    with world() as made:
        yield made
