"""Fixtures of fault scenarios. A scenario's marker describes the injected fault; the test reports the result."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from tests.engine.conftest import run_session, start
from tests.faults.world import World, world
from tests.support.postgres import postgres_server

__all__ = ["run_session", "start"]

Observe = Callable[[str], None]


@pytest.fixture(autouse=True)
def _fault_properties(request: pytest.FixtureRequest) -> None:
    if marker := request.node.get_closest_marker("fault"):
        request.node.user_properties.extend(zip(("fault", "injected"), marker.args, strict=True))


@pytest.fixture
def observe(request: pytest.FixtureRequest) -> Observe:
    """Adds a sentence to the scenario's result: `observe("no record was counted twice")`."""
    return lambda text: request.node.user_properties.append(("result", text))


@pytest.fixture
def orders() -> Iterator[World]:
    """The orders pipeline with its own broker, run by real processes."""
    with world() as orders:
        yield orders


@pytest.fixture
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """The pipeline and database of the parameter: `orders` has its state in SQLite, `words-postgres` in PostgreSQL."""
    name, _, database = request.param.partition("-")
    with (
        world(name) as subject,
        postgres_server(tmp_path / "postgres") if database else nullcontext("") as url,
    ):
        if url:
            subject.environment |= {"SLUICE_LEDGER": url, "SLUICE_SHARDS": url}
        yield subject


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory. `size`: such as `24m` or `900k`."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("Cannot mount a small file system: run this test as root.")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill a file system with one file. Returns the file, whose removal frees the space."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return filler
