"""A process that answers queries closes the shards that are no longer queried."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from sluice.query.workers import OPEN_SECONDS, Workers
from sluice.server.served_shards import ServedShards
from sluice.state.ledger.placement import Placement
from sluice.state.queries.worker_queries import Value
from tests.support.states import States

REBUILDS = 20
Ask = Callable[[States], Awaitable[bytes]]
"""Looks up a key in a generation."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def of_a_reader(states: States, clock: Clock) -> Ask:
    workers = Workers(states.ledger.audits, clock=clock)

    async def ask(generation: States) -> bytes:
        (info, *_) = generation.info().workers
        ((value,), _) = await workers.execute(info, Value(0, 0, 0, "a"))
        assert value is not None
        return bytes(value)

    return ask


def of_a_state_server(states: States, clock: Clock) -> Ask:
    states.ledger.placements.claim(Placement("orders", 0, "127.0.0.1", 1))
    shards = ServedShards(states.ledger, states.database, "127.0.0.1", 1, clock)

    async def ask(generation: States) -> bytes:
        worker = await shards.worker(generation.ref, 0)
        return bytes(await worker.execute(Value(0, 0, 0, "a")) or b"")

    return ask


@pytest.mark.parametrize("process", [of_a_reader, of_a_state_server])
def test_shards_of_replaced_generations_are_closed(
    process: Callable[[States, Clock], Ask], tmp_path: Path
) -> None:
    clock = Clock()
    generations = [
        States(
            f"sqlite:///{tmp_path}",
            workers=1,
            generation=number,
            ledger_at=f"sqlite:///{tmp_path}/ledger.sqlite",
        )
        for number in range(1, REBUILDS + 1)
    ]
    for generation in generations:
        generation.publish({"a": f"[{generation.generation}]"})
    ask = process(generations[0], clock)

    async def run() -> None:
        for generation in generations:
            assert await ask(generation) == str(generation.generation).encode()
            # A snapshot of the generation before is still read for a while.
            clock.now += OPEN_SECONDS / 2
            await ask(generation)
            clock.now += OPEN_SECONDS
        assert open_generations(tmp_path) <= {f"g{REBUILDS}", f"g{REBUILDS - 1}"}
        assert await ask(generations[0]) == b"1", "a closed shard is opened again"

    asyncio.run(run())


def open_generations(folder: Path) -> set[str]:
    """The generations whose shards this process has open."""
    files = (Path(file.path) for file in psutil.Process().open_files())
    return {file.parts[-2] for file in files if folder in file.parents and "worker-" in file.name}
