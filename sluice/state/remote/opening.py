"""Opens shards, in this process or through the state server that serves them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from sluice.errors import StateError
from sluice.state.model import GenerationInfo
from sluice.state.shard.addresses import drop, is_remote
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.shard import Shard
from sluice.state.shard.sizes import sizes_of

if TYPE_CHECKING:
    from sluice.state.remote.remote_shard import RemoteShard


def open_shard(url: str, *, to_write: bool = False, token: str = "") -> Shard:
    """Open a shard.

    Raise StateError if it does not exist, because a lost shard must not look like an empty shard.
    `token` is sent to a state server and defaults to the token from the settings.
    """
    if is_remote(url):
        return _remote_shard().open(url, token=token)
    return LocalShard.open(url, to_write=to_write)


def create_shard(url: str, *, anew: bool = False, continued: bool = False) -> Shard:
    """Open a shard for writing, and create it if it does not exist.

    With `anew` or `continued`, the shard is sealed: runs cannot write to it before it has been
    filled from another shard. If there is a sealed shard already, `anew` replaces it, and
    `continued` keeps its rows. If there is a shard in use, both raise Refused.
    """
    if is_remote(url):
        return _remote_shard().create(url, anew=anew, continued=continued)
    return LocalShard.create(url, anew=anew, continued=continued)


def drop_shard(url: str) -> None:
    """Delete a shard. Do nothing if it does not exist."""
    if is_remote(url):
        _remote_shard().drop(url)
    else:
        drop(url)


def sizes_of_shards(urls: Iterable[str]) -> dict[str, int]:
    """Return the address of each shard → its size in bytes.

    All shards of a PostgreSQL database take one query.

    Omit shards that do not exist, and shards of a server or a database that does not answer.
    """
    local: list[str] = []
    sizes: dict[str, int] = {}
    for url in urls:
        if is_remote(url):
            with suppress(StateError):
                sizes[url] = _remote_shard().size_of(url)
        else:
            local.append(url)
    return sizes | sizes_of(local)


def state_size(info: GenerationInfo) -> int | None:
    """Return the size of all shards of a generation; None if the size of a shard is unknown."""
    # A state server tells the size of its shard, which may be on another host than this process.
    sizes = sizes_of_shards(worker.server or worker.location for worker in info.workers)
    if len(sizes) < len(info.workers):
        return None
    return sum(sizes.values())


def _remote_shard() -> type[RemoteShard]:
    # The module of `RemoteShard` imports an HTTP client, which a process that uses no state server
    # need not load.
    from sluice.state.remote.remote_shard import RemoteShard

    return RemoteShard
