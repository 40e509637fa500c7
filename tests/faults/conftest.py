"""Scenarios: what is injected stands in their marker, what was seen they say themselves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.engine.conftest import start
from tests.faults.world import World, world
from tests.postgres import postgres_server

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


@pytest.fixture
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The pipeline that a parameter names, `orders` or `words`, with its state where another says: `words-postgres`."""
    name, _, database = request.param.partition("-")
    with world(name) as made, postgres_server(tmp_path / "postgres") if database else nullcontext("") as url:
        if url:
            made.environment |= {"SLUICE_LEDGER": url, "SLUICE_SHARDS": url}
        yield made


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes (`24m`, `900k`), in memory."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("A small file system cannot be mounted here: run this as root.")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
