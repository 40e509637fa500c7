"""Opens workers' shards. Errors have the worker's number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sluice.errors import DamagedState
from sluice.state.remote.opening import open_shard
from sluice.state.shard.addresses import shown
from sluice.state.shard.shard import Shard


@contextmanager
def worker_shard(worker: int, location: str, token: str = "") -> Iterator[Shard]:
    """Open a worker's shard for writing.

    Raises DamagedState with the worker's number and the shard's address.
    """
    try:
        with open_shard(location, to_write=True, token=token) as shard:
            yield shard
    except DamagedState as error:
        raise damaged_state({worker: (location, error.detail)}) from error


def damaged_state(shards: Mapping[int, tuple[str, str]]) -> DamagedState:
    """Return the error for damaged shards: worker → the shard's address and the reason."""
    addresses = {worker: shown(location) for worker, (location, _) in shards.items()}
    sentences = []
    for worker, (_, reason) in shards.items():
        cause = reason.removeprefix("The shard is damaged: ")
        sentences.append(
            f"Worker {worker}'s shard is damaged: {cause} Its address is {addresses[worker]}."
        )
    return DamagedState(" ".join(sentences), workers=addresses)
