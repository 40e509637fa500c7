"""Fills the shards of a new generation with the kept state of the old one and the computed state of changed stores.

Both have their own numbers of groups and operators. A group with stores of both kinds has rows with values from both.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby

import msgspec

from sluice.engine.batch.shards import worker_shard
from sluice.engine.batch.stream_time import CLOSED, OWN_TIMES
from sluice.engine.job.compatibility import StoreChanges, number_of
from sluice.engine.job.moving import Origin, Target, in_pages
from sluice.plan import FusedJob, Job, OrderedJob
from sluice.plan.operators import Suppress
from sluice.remote.opening import create_shard
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobInfo, StateRow, StoreInfo
from sluice.state.shard.checksums import row_digest, state_digest
from sluice.state.shard.operator_states import StateVersion
from sluice.state.shard.pages import PAGE
from sluice.state.shard.protocol import Checksums, Shard, Version

_SIDES = (".any", ".0", ".1")
"""Suffixes of an operator's name in the names of its stream times."""


@dataclass(frozen=True)
class Part:
    """The job of the changed stores, and its generation."""

    job: Job
    info: JobInfo


@dataclass(frozen=True)
class _Group:
    """A group of the new generation, and where its values come from."""

    number: int
    old: int | None
    """The group in the old generation from which it keeps values."""
    part: int | None
    """The group of the changed stores from which it gets values."""
    columns: tuple[tuple[bool, int], ...]
    """For each store: whether it is kept, and its column in the group where it comes from."""
    missing: tuple[bytes, ...]
    """The stores' values without records."""
    stores: tuple[int, int]
    """The number of stores in both groups. Values of a group with outputs end with an event time."""

    def value(self, old: str | None, part: str | None) -> str:
        """The value of a row from its values in both groups; None where a group does not have the row."""
        only = old if self.part is None else part if self.old is None else None
        if only is not None and [column for _, column in self.columns] == [*range(max(self.stores))]:
            return only
        kept, computed = (None if text is None else _decode(text) for text in (old, part))
        values = [
            missing if of_row is None else bytes(of_row[column])
            for (is_kept, column), missing in zip(self.columns, self.missing, strict=True)
            for of_row in [kept if is_kept else computed]
        ]
        times = [
            int(bytes(time))
            for of_row, stores in zip((kept, computed), self.stores, strict=True)
            for time in (of_row or [])[stores:]
        ]
        return f"[{b','.join([*values, *([str(max(times)).encode()] if times else [])]).decode()}]"


_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Merge:
    """Fills the shards of a new generation from those of the old one and of the changed stores."""

    def __init__(self, job: Job, old: JobInfo, part: Part | None, new: JobInfo, changes: StoreChanges) -> None:
        self.job, self.old, self.part, self.new = job, old, None if part is None else part.info, new
        operators, again = dict(changes.operators), frozenset[str]()
        if isinstance(job, OrderedJob):
            # A processor's stores are kept with its state.
            again = frozenset(
                store for operator in job.operators if operator.name in changes.added for store in operator.stores
            )
        if part is not None and isinstance(part.job, OrderedJob):
            # Results that are held back are computed again, because a changed step may also need the values before.
            held_back = {operator.name for operator in part.job.operators if isinstance(operator.action, Suppress)}
            operators = {before: now for before, now in operators.items() if now not in held_back}
        self.kept_operators, self.kept_stores = operators, changes.stores - again
        self.groups = [*self._groups()]

    def _groups(self) -> Iterator[_Group]:
        sources = [_by_name(self.old), {} if self.part is None else _by_name(self.part)]
        sizes = [_sizes(source.values()) for source in sources]
        of_group: dict[int, list[StoreInfo]] = defaultdict(list)
        for store in sorted(self.new.stores, key=lambda each: each.store_column):
            of_group[store.group_id].append(store)
        for number, stores in of_group.items():
            groups: list[int | None] = [None, None]
            columns = []
            for store in stores:
                is_kept = store.name in self.kept_stores
                source = sources[0 if is_kept else 1].get(store.name)
                columns.append((is_kept, 0 if source is None else source.store_column))
                if source is not None:
                    groups[0 if is_kept else 1] = source.group_id
            counts = tuple(0 if group is None else size[group] for group, size in zip(groups, sizes, strict=True))
            missing = tuple(self._missing(number, store.name) for store in stores)
            yield _Group(number, groups[0], groups[1], tuple(columns), missing, (counts[0], counts[1]))

    def _missing(self, group: int, store: str) -> bytes:
        """A store's value without records: 0 for counts, otherwise null."""
        if not isinstance(self.job, FusedJob) or group >= len(self.job.groups):
            return b"null"
        of_job = self.job.groups[group]
        column = next(column for column in of_job.store_columns if column.store == store)
        values = {name: 0 if of_job.mergeable[text][0] == "count" else None for name, text in column.columns}
        return msgspec.json.encode(next(iter(values.values())) if column.scalar else values)

    def fill(self, batch: int, audit: Audit | None, epoch: int) -> list[Checksums]:
        """Fill the shards with the state of `batch`. Returns their checksums."""
        checksums = []
        for worker in self.new.workers:
            with ExitStack() as stack:
                target = Target(stack.enter_context(create_shard(worker.location, anew=True)))
                old = self.old.workers[worker.number]
                origin = Origin(stack.enter_context(worker_shard(worker.number, old.location)))
                part: Shard | None = None
                if self.part is not None:
                    location = self.part.workers[worker.number].location
                    part = stack.enter_context(worker_shard(worker.number, location))
                for rows in in_pages(self._rows(origin, part, batch)):
                    target.add(rows)
                for states in in_pages(self._states(origin, part, batch)):
                    target.add_states(states)
                origin.require_published(old, audit)
                checksums.append(target.finish(batch, epoch))
        return checksums

    def _rows(self, origin: Origin, part: Shard | None, batch: int) -> Iterator[Version]:
        by_old = {group.old: group for group in self.groups if group.old is not None}
        done = set()
        kept = (version for page in origin.rows() for version in page)
        for number, versions in groupby(kept, lambda version: version.group_id):
            if (group := by_old.get(number)) is not None:
                done.add(group.number)
                yield from _merged(group, versions, _scanned(part, group.part), batch)
        for group in self.groups:
            if group.number not in done:
                yield from _merged(group, (), _scanned(part, group.part), batch)

    def _states(self, origin: Origin, part: Shard | None, batch: int) -> Iterator[StateVersion]:
        now = {name: number_of(definition) for name, definition in self.new.operators.items()}
        numbers = {number_of(self.old.operators[before]): now[name] for before, name in self.kept_operators.items()}
        for page in origin.states():
            for state in page:
                if (number := numbers.get(state.operator)) is not None:
                    yield _renumbered(state, number, state.batch)
        if part is None or self.part is None:
            return
        kept = {*self.kept_operators.values()}
        computed = {number_of(text): now[name] for name, text in self.part.operators.items() if name not in kept}
        for page in Origin(part).states():
            for state in page:
                if (number := computed.get(state.operator)) is not None:
                    yield _renumbered(state, number, batch)

    def times(self, ledger: Ledger, batch: int) -> dict[str, int]:
        """The stream times from which the next batch continues."""
        times: dict[str, int] = {}
        for info in (self.old, *([] if self.part is None else [self.part])):
            names = _first_stores(info, self.new)
            if info is self.old:
                names |= self.kept_operators
            else:
                names |= {name: name for name in info.operators}
            last = batch if info is self.old else ledger.snapshots.last_batch(info.ref)
            for key, at in ({} if last is None else ledger.snapshots.times_before(info.ref, last + 1)).items():
                if (renamed := _renamed(key, names)) is not None:
                    times[renamed] = max(at, times.get(renamed, at))
        return times


def _merged(group: _Group, kept: Iterable[Version], computed: Iterable[StateRow], batch: int) -> Iterator[Version]:
    """The rows of a group in the new generation, from two sorted sources."""
    both: Iterable[Version | StateRow] = heapq.merge(kept, computed, key=_place)
    for _, same in groupby(both, _place):
        rows = [*same]
        old = next((row for row in rows if isinstance(row, Version)), None)
        new = next((row for row in rows if isinstance(row, StateRow)), None)
        value = group.value(*(None if row is None else row.value for row in (old, new)))
        row = (group.number, rows[0].key, rows[0].window_start, rows[0].window_end, value)
        yield Version(*row[:4], batch if old is None else old.batch, value, row_digest(row))


def _place(row: Version | StateRow) -> tuple[str, int]:
    return row.key, row.window_start


def _scanned(shard: Shard | None, group: int | None) -> Iterator[StateRow]:
    """All rows of a group in its newest batch, sorted."""
    after: tuple[str, int] | None = None
    while shard is not None and group is not None:
        page = shard.scan(group, sys.maxsize, after=after, limit=PAGE, checked=True)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].key, page[-1].window_start


def _renumbered(state: StateVersion, operator: int, batch: int) -> StateVersion:
    digest = state_digest(operator, bool(state.shared), state.key, state.due, state.wall, state.state)
    return msgspec.structs.replace(state, operator=operator, batch=batch, digest=digest)


def _by_name(info: JobInfo) -> dict[str, StoreInfo]:
    return {store.name: store for store in info.stores}


def _sizes(stores: Iterable[StoreInfo]) -> Counter[int]:
    """Group → its number of stores."""
    return Counter(store.group_id for store in stores)


def _first_stores(info: JobInfo, now: JobInfo) -> dict[str, str]:
    """Group's name in `info` → its name in `now`: the name of its first store, for groups that share stores."""
    before, after = (
        {store.group_id: store.name for store in each.stores if not store.store_column} for each in (info, now)
    )
    groups = _by_name(now)
    return {before[store.group_id]: after[groups[store.name].group_id] for store in info.stores if store.name in groups}


def _renamed(key: str, names: Mapping[str, str]) -> str | None:
    """The name of a stream time in the new generation; None if its operator is gone."""
    name, _, rest = key.partition("/")
    if name == CLOSED and rest:
        return f"{CLOSED}/{names[rest]}" if rest in names else None
    if name in OWN_TIMES:
        return key
    suffix = next((side for side in _SIDES if name not in names and name.endswith(side)), "")
    operator = names.get(name.removesuffix(suffix))
    return None if operator is None else f"{operator}{suffix}/{rest}"
