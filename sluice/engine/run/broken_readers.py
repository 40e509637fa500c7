"""Checks that a changed pipeline keeps what other pipelines read from its topics and stores.

A reader refuses a store that lacks something that the reader needs. This module refuses the change
of the store already, before the changed pipeline runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Self

import structlog

from sluice.engine.run.compatibility import CompatibilityError
from sluice.plan import PlannedPipeline
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo
from sluice.values.interfaces import (
    Breach,
    Interface,
    ReadableStore,
    Reader,
    breaches,
    breaches_text,
    next_step_of,
    readers_in,
)

log = structlog.get_logger()


class BreaksReadersError(CompatibilityError):
    """A change of a pipeline takes away what other pipelines read."""

    title = "Other pipelines read this"

    def __init__(
        self,
        pipeline: str,
        found: Sequence[Breach],
        owners: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        text = breaches_text(pipeline, found, owners)
        super().__init__(text, next_step=next_step_of(pipeline, found))
        self.pipeline = pipeline
        self.breaches = tuple(found)

    def with_owners(self, owner_of: Callable[[str, str], str]) -> Self:
        """Return the error with the readers' owners; `owner_of` takes a pipeline and its file."""
        owners: dict[str, str] = {}
        for breach in self.breaches:
            owners[breach.reader.pipeline] = owner_of(breach.reader.pipeline, breach.reader.file)
        return type(self)(self.pipeline, self.breaches, owners)


def require_kept_interface(
    ledger: Ledger,
    before: GenerationInfo | None,
    now: GenerationInfo,
    planned: PlannedPipeline,
    readers: Iterable[Reader] = (),
) -> list[Breach]:
    """List what a change of a pipeline breaks for its readers.

    Raise BreaksReadersError if one of these readers is not among the pipeline's `may_break`.

    `before` is the generation that others read now. `readers` are read from files; the others are
    known from the ledger.
    """
    found = broken_readers(ledger, before, now, readers)
    allowed = {*readers_in(found)} & {*planned.may_break}
    if allowed:
        log.warning("readers may break", pipeline=now.pipeline, readers=sorted(allowed))
    refused = [breach for breach in found if breach.reader.pipeline not in allowed]
    if refused:
        raise BreaksReadersError(now.pipeline, refused)
    return found


def broken_readers(
    ledger: Ledger,
    before: GenerationInfo | None,
    now: GenerationInfo,
    readers: Iterable[Reader] = (),
) -> list[Breach]:
    """List what a change of a pipeline breaks for other pipelines, without repetitions."""
    if before is None:
        return []
    old, new = interface_of(before), interface_of(now)
    # Almost every run changes nothing, and need not read the other pipelines.
    if old == new:
        return []
    found: list[Breach] = []
    named: set[tuple[str, str]] = set()
    for reader in (*readers_of_ledger(ledger, now.pipeline), *readers):
        for breach in breaches(old, new, reader):
            # A reader's file says the same as the ledger, unless the file has changed.
            if (reader.pipeline, str(breach)) not in named:
                named.add((reader.pipeline, str(breach)))
                found.append(breach)
    return found


def interface_of(info: GenerationInfo) -> Interface:
    """Return the interface of a generation, which other pipelines can read."""
    # The name of a table outside Kafka has a colon, and no pipeline reads it.
    topics = {name: fields for name, fields in info.outputs.items() if ":" not in name}
    stores: dict[str, ReadableStore] = {}
    for store in info.stores:
        stores[store.name] = ReadableStore(store.value, store.key, store.windows)
    return Interface(topics, stores)


def readers_of_ledger(ledger: Ledger, pipeline: str) -> list[Reader]:
    """Return all other pipelines that have run and are not retired, as readers of a pipeline."""
    retired = ledger.generations.retired()
    names = {pipeline, *ledger.renames.former_names(pipeline)}
    readers: list[Reader] = []
    for info in ledger.generations.all_current():
        if info.pipeline == pipeline or info.pipeline in retired:
            continue
        reads = stores_read(names, info.reads)
        readers.append(Reader(info.pipeline, info.contracts, reads, info.file))
    return readers


def stores_read(
    names: Collection[str], reads: dict[str, dict[str, list[str]]]
) -> dict[str, list[str]]:
    """Return store → the types in which it is read, of the pipeline with one of these names."""
    stores: dict[str, list[str]] = {}
    for name in reads.keys() & {*names}:
        for store, kinds in reads[name].items():
            stores.setdefault(store, []).extend(kinds)
    return stores
