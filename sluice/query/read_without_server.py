"""Reads a store directly, without a server."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import msgspec

from sluice import answers
from sluice.errors import Incomplete, QueryError
from sluice.query.answered_entries import answered_entry
from sluice.query.as_of import AsOf
from sluice.query.catalogue import only_store
from sluice.query.former_names import renamed_store
from sluice.query.reader import Reader
from sluice.query.time_texts import parse_time
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.queries.entries import Entry
from sluice.state.shard.ranges import RowRange

_DECODER = msgspec.json.Decoder(float_hook=Decimal)


def read_store(
    store: str,
    *,
    pipeline: str | None = None,
    as_of: str | None = None,
    first: str | None = None,
    last: str | None = None,
    prefix: str = "",
    start: str | None = None,
    end: str | None = None,
    limit: int | None = None,
) -> list[answers.Entry]:
    """Read a store's entries, in order, from the ledger and shards in the settings.

    Needs no server. The parameters are the same as for `Client.range`. With `limit`, the result has
    only the first `limit` entries. Numbers with a decimal point are `Decimal`. Raises NotFound if
    the store does not exist, and StateError if a worker's shard cannot be read. Raises QueryError
    if there are more than 100,000 entries and no `limit` is given.
    """
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise QueryError(f"`limit` is {limit!r}, but must be a whole number of at least 1.")
    for name, text in {"first": first, "last": last, "prefix": prefix}.items():
        if text is not None and not _has_utf8_bytes(text):
            raise QueryError(f"{name}={text!r} is not valid Unicode text, so it cannot be a key.")
    within = RowRange(first, last, prefix, parse_time("start", start), parse_time("end", end))
    # The caller's thread may already run an event loop, as in a notebook. `asyncio.run` needs a
    # thread without one.
    with ThreadPoolExecutor(1) as thread:
        entries = thread.submit(
            asyncio.run, _read(store, pipeline, AsOf(as_of), within, limit)
        ).result()
    return [answered_entry(entry, _DECODER.decode(entry.value)) for entry in entries]


async def _read(
    name: str,
    pipeline: str | None,
    as_of: AsOf,
    within: RowRange,
    limit: int | None,
) -> list[Entry]:
    with Ledger.open(settings().ledger) as ledger:
        reader = Reader(ledger)
        try:
            named = await reader.catalogue.stores_named(name)
            stores = [store for store in named if pipeline in (None, store.pipeline)]
            if not stores:
                renamed = renamed_store(ledger.renames, name, pipeline)
                if renamed is not None:
                    raise renamed
            all_names = {store.name for store in await reader.catalogue.stores()}
            store = only_store(
                name,
                stores,
                unknown=f"Stores in this ledger: {', '.join(sorted(all_names)) or 'none'}.",
                ambiguous="Choose one of: {pipelines}.",
            )
            pin = await reader.catalogue.pin(store, as_of)
            if limit is None:
                answer = await reader.all(pin, within)
            else:
                answer = await reader.scan(pin, within, limit=limit)
            reasons = answers.unavailable(answer.workers)
            if reasons:
                raise Incomplete(f"Some workers cannot be read: {'; '.join(reasons)}")
            return answer.entries
        finally:
            # Without this call, the connections stay open until Python's garbage collector finds
            # them.
            await reader.workers.close()


def _has_utf8_bytes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        # The text has a lone surrogate, which UTF-8 cannot encode.
        return False
    return True
