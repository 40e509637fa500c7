"""Looks up records in a store of another pipeline, at the snapshot that their batch reads."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.errors import EngineError, StateError
from sluice.operators.call import Lookup, Rows
from sluice.operators.encoding import Declared
from sluice.values.call_parameters import CallPolicy, SharedSnapshot, SharedStore
from sluice.values.key_owners import owner
from sluice.values.record_metadata import OnMissing
from sluice.values.stored_values import value_decoder

if TYPE_CHECKING:
    from sluice.state.queries.entries import Entry
    from sluice.state.queries.worker_queries import Query


class StoreLookup(Lookup):
    """Joins each record with the value of its key in another pipeline's store."""

    def __init__(
        self,
        store: SharedStore,
        value_type: Any,
        policy: CallPolicy,
        step: str,
        on_missing: OnMissing,
    ) -> None:
        super().__init__(self._read_values, policy, step, on_missing)
        self.source = f"the store {store}"
        self._store = store
        self._decode = value_decoder(value_type)
        self._declared = Declared(value_type)
        self._snapshot: SharedSnapshot | None = None
        self._locations: Sequence[str] = ()
        self._token = ""

    def read_at(
        self, shared: Mapping[str, SharedSnapshot], locations: Sequence[str], token: str
    ) -> None:
        """Set where the batch reads the store.

        `locations` are the addresses of this pipeline's own shards. The store's shards may have the
        same passwords. `token` is the token of the state servers.
        """
        self._snapshot = shared.get(str(self._store))
        self._locations, self._token = locations, token

    def _read_values(self, keys: Sequence[str]) -> Rows:
        """Return the values of keys as JSON.

        If a value does not have the declared type, the result has an exception in its place.
        """
        snapshot = self._snapshot
        if snapshot is None:
            raise EngineError(
                f"The batch was planned without the store {self._store}.",
                next_step="Run the pipeline again. If this error comes back, report it.",
            )
        texts: dict[str, str] = {}
        if snapshot.rows is None:
            texts = self._read_shards(snapshot, keys)
        else:
            for key in keys:
                if key in snapshot.rows:
                    texts[key] = snapshot.rows[key]
        values: dict[str, str | BaseException] = {}
        for key, text in texts.items():
            try:
                json = self._declared.json(self._decode(text))
            except Exception as error:
                # Drop the traceback: the answers must not keep its frames in memory.
                values[key] = error.with_traceback(None)
                continue
            if json is not None:
                values[key] = json
        return values

    def _read_shards(self, snapshot: SharedSnapshot, keys: Sequence[str]) -> dict[str, str]:
        keys_by_worker: defaultdict[int, list[str]] = defaultdict(list)
        for key in keys:
            worker = 0
            if not snapshot.is_global:
                worker = owner(key, len(snapshot.workers))
            keys_by_worker[worker].append(key)
        texts: dict[str, str] = {}
        for worker, owned in keys_by_worker.items():
            texts |= self._read_shard(snapshot, worker, owned)
        return texts

    def _read_shard(self, snapshot: SharedSnapshot, worker: int, keys: list[str]) -> dict[str, str]:
        """Read the values of keys from a worker's shard, or else from its standby."""
        # Imported only if a pipeline reads a shared store.
        from sluice.state.queries.worker_queries import Values, WithHeaders

        fields = snapshot.group_id, snapshot.store_column, snapshot.batch
        reason: StateError | None = None
        for address in snapshot.workers[worker]:
            try:
                if snapshot.with_headers:
                    entries: list[Entry] = self._execute(address, WithHeaders(*fields, keys))
                    return {entry.key: bytes(entry.value).decode() for entry in entries}
                values = self._execute(address, Values(*fields, keys))
                return {key: bytes(value).decode() for key, value in values.items()}
            except StateError as error:
                reason = reason or error
        detail = "it has no shard."
        if reason is not None:
            detail = reason.detail
        # Do not raise one of Sluice's errors, which would end the run: the step repeats the read.
        raise ConnectionError(
            f"Worker {worker} of {self._store.pipeline} cannot be read at snapshot {snapshot.id}: "
            f"{detail}"
        )

    def _execute(self, address: str, query: Query[Any]) -> Any:
        from sluice.state.database import database_url
        from sluice.state.remote.remote_worker import RemoteWorker
        from sluice.state.shard.addresses import is_remote
        from sluice.state.shard.local_shard import LocalShard
        from sluice.state.shard.passwords import with_password

        if is_remote(address):
            return asyncio.run(_ask(RemoteWorker(address, self._token), query))
        url = with_password(database_url(address), self._locations)
        with LocalShard.open(url.render_as_string(hide_password=False)) as shard:
            if shard.is_sealed():
                raise StateError("The copy of the shard is not complete yet.")
            return query.execute(shard)


async def _ask(worker: Any, query: Query[Any]) -> Any:
    try:
        return await worker.execute(query)
    finally:
        await worker.close()
