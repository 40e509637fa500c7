"""Fills a new generation's shards with kept state and with the computed state of changed stores.

The old generation and the generation of the changed stores number their groups and operators
differently. If a group has kept and changed stores, its rows combine values from both generations.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, repeat

import msgspec

from sluice.engine.batch.stream_time import (
    BEFORE_ALL,
    CLOSED,
    OF_WORKERS,
    OWN_TIMES,
    StreamTimes,
)
from sluice.engine.batch.worker_shards import worker_shard
from sluice.engine.combine.windowing import closed
from sluice.engine.run.compatibility import StoreChanges, number_of
from sluice.plan import Job
from sluice.plan.operator_parameters import SuppressParameters
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import EntryId, GenerationInfo, StoreInfo
from sluice.state.remote.copying import NewShard, in_pages, newest_rows, newest_states
from sluice.state.remote.opening import create_shard
from sluice.state.shard.checksums import row_digest, state_digest
from sluice.state.shard.operator_states import StateVersion
from sluice.state.shard.pages import pages_of_answers
from sluice.state.shard.shard import Checksums, Shard, Version

_SIDES = (".any", ".0", ".1")
"""The suffixes that the names of stream times add to an operator's name.

They are `.any` for all of its rows, `.0` and `.1` for the left and the right input of a join (see
`engine.stages.timeline`)."""


@dataclass(frozen=True)
class ComputedStores:
    """The job of the changed stores, and its generation."""

    job: Job
    info: GenerationInfo


@dataclass(frozen=True)
class _Input:
    """A group of the old generation or of the changed stores, whose values a new group gets."""

    kept: bool
    """Whether the group belongs to the old generation, rather than to the changed stores."""
    group: int
    stores: int
    """The number of stores in the group. If the group has outputs, a row's JSON array has an event
    time after the stores' values."""


@dataclass(frozen=True)
class _Group:
    """A group of the new generation, and where its values come from."""

    number: int
    inputs: tuple[_Input, ...]
    """The groups from which the values come. There are several groups if stores now share rows that
    were separate before, or if some stores are kept and others computed."""
    columns: tuple[tuple[int, int], ...]
    """For each store: the index in `inputs` of the group with the store's value, and the value's
    column in this group."""
    missing: tuple[bytes, ...]
    """For each store, the value of a key for which it has read no record."""

    def value(self, of_inputs: Mapping[int, str]) -> str:
        """Combine a row's values from the inputs that contain the row."""
        if self._is_unchanged:
            return of_inputs[0]
        decoded: dict[int, list[msgspec.Raw]] = {}
        for number, text in of_inputs.items():
            decoded[number] = _decode(text)
        values: list[bytes] = []
        for (number, column), missing in zip(self.columns, self.missing, strict=True):
            if number in decoded:
                values.append(bytes(decoded[number][column]))
            else:
                values.append(missing)
        times: list[int] = []
        for number, row in decoded.items():
            for time in row[self.inputs[number].stores :]:
                times.append(int(bytes(time)))
        if times:
            values.append(str(max(times)).encode())
        return f"[{b','.join(values).decode()}]"

    @cached_property
    def _is_unchanged(self) -> bool:
        """Return whether the group has the stores of its only input, in the same order."""
        if len(self.inputs) != 1:
            return False
        columns = [column for _, column in self.columns]
        return columns == [*range(self.inputs[0].stores)]


_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


class GroupMerge:
    """Fills a new generation's shards from the old generation and the changed stores."""

    def __init__(
        self,
        job: Job,
        old: GenerationInfo,
        part: ComputedStores | None,
        new: GenerationInfo,
        changes: StoreChanges,
    ) -> None:
        self.job, self.old, self.part, self.new = job, old, part, new
        operators = dict(changes.operators)
        if part is not None:
            # A suppress step holds results back. If a step after the suppress step has changed, it
            # may need the value that each of these results replaces. The old generation's state may
            # lack
            # this value, so the suppress step gets the computed state.
            held_back: set[str] = set()
            for operator in part.job.operators:
                if isinstance(operator.action, SuppressParameters):
                    held_back.add(operator.name)
            for before, now in changes.operators.items():
                if now in held_back:
                    del operators[before]
        self.kept_operators = operators
        # The stores of a kept processor are kept, too, because they are part of its state. A store
        # that was added to a kept processor begins empty.
        of_processor = processors_of(job)
        kept_stores = changes.stores - of_processor.keys()
        for store, processor in of_processor.items():
            if processor in operators.values():
                kept_stores |= {store}
        self.kept_stores = kept_stores
        self.groups = [*self._groups()]

    def _groups(self) -> Iterator[_Group]:
        sources = {True: self.old.stores_by_name, False: {}}
        if self.part is not None:
            sources[False] = self.part.info.stores_by_name
        sizes: dict[bool, Counter[int]] = {}
        for is_kept, stores_by_name in sources.items():
            sizes[is_kept] = Counter(store.group_id for store in stores_by_name.values())
        of_group: dict[int, list[StoreInfo]] = defaultdict(list)
        for store in sorted(self.new.stores, key=lambda each: each.store_column):
            of_group[store.group_id].append(store)
        for number, stores in of_group.items():
            inputs: list[_Input] = []
            columns = []
            for store in stores:
                is_kept = store.name in self.kept_stores
                source = sources[is_kept].get(store.name)
                if source is None:
                    # Neither generation has a store that was added to a kept processor. Such a
                    # store begins empty.
                    break
                of_store = _Input(is_kept, source.group_id, sizes[is_kept][source.group_id])
                if of_store not in inputs:
                    inputs.append(of_store)
                columns.append((inputs.index(of_store), source.store_column))
            else:
                missing = tuple(self._missing(number, store.name) for store in stores)
                yield _Group(number, tuple(inputs), tuple(columns), missing)

    def _missing(self, group: int, store: str) -> bytes:
        """Return the value of a key for which a store has read no record.

        It is 0 for counts, otherwise null.
        """
        of_job = self.job.groups_by_number.get(group)
        if of_job is None:
            return b"null"
        (column,) = (column for column in of_job.store_columns if column.store == store)
        values: dict[str, int | None] = {}
        for name, aggregate in column.columns:
            values[name] = 0 if aggregate.function == "count" else None
        if column.scalar:
            return msgspec.json.encode(next(iter(values.values())))
        return msgspec.json.encode(values)

    def fill(self, batch: int, audit: Audit | None, epoch: int) -> list[Checksums]:
        """Fill the shards with the state of `batch`. Return their checksums.

        Raise DamagedState if the state of the old generation is not as published.
        """
        checksums = []
        for worker in self.new.workers:
            with ExitStack() as stack:
                # An earlier call that was killed may have left a part of the shard, which `anew`
                # replaces.
                target = NewShard(stack.enter_context(create_shard(worker.location, anew=True)))
                location = self.old.workers[worker.number].location
                old = stack.enter_context(worker_shard(worker.number, location))
                published = None
                if audit is not None:
                    published = audit.published_checksums(worker.number)
                old.verify_rows(batch, published)
                old.verify_states(batch, published)
                part: Shard | None = None
                if self.part is not None:
                    location = self.part.info.workers[worker.number].location
                    part = stack.enter_context(worker_shard(worker.number, location))
                    part.verify_rows(sys.maxsize)
                for group in self.groups:
                    for rows in in_pages(_merge_rows(group, old, part, batch)):
                        target.add(rows)
                for states in in_pages(self._states(old, part, batch)):
                    target.add_states(states)
                for shard in (old, part):
                    if shard is not None:
                        for answers in pages_of_answers(shard):
                            target.add_answers(answers)
                checksums.append(target.finish(batch, epoch))
        return checksums

    def _states(self, old: Shard, part: Shard | None, batch: int) -> Iterator[StateVersion]:
        new_numbers: dict[str, int] = {}
        for name, definition in self.new.operators.items():
            new_numbers[name] = number_of(definition)
        numbers: dict[int, int] = {}
        for before, name in self.kept_operators.items():
            numbers[number_of(self.old.operators[before])] = new_numbers[name]
        for state in newest_states(old):
            if (number := numbers.get(state.operator)) is not None:
                yield _renumber(state, number, state.batch)
        if part is None or self.part is None:
            return
        kept = {*self.kept_operators.values()}
        computed: dict[int, int] = {}
        for name, definition in self.part.info.operators.items():
            if name not in kept:
                computed[number_of(definition)] = new_numbers[name]
        for state in newest_states(part):
            if (number := computed.get(state.operator)) is not None:
                yield _renumber(state, number, batch)

    def times(self, ledger: Ledger, batch: int) -> dict[str, int]:
        """Return the stream times from which the next batch continues."""
        kept = ledger.snapshots.times_before(self.old.ref, batch + 1)
        computed: Mapping[str, int] = {}
        if self.part is not None:
            last = ledger.snapshots.last_batch(self.part.info.ref)
            if last is not None:
                computed = ledger.snapshots.times_before(self.part.info.ref, last + 1)
        times: dict[str, int] = {}
        # Kept times come last. Both sources have times that belong to no operator, such as `:seen`,
        # and the kept times must replace the computed times.
        for is_kept, of_source in ((False, computed), (True, kept)):
            names = self._names(is_kept=is_kept)
            for key, at in of_source.items():
                for name in _new_names(key, names):
                    if name in times and name.split("/")[0] not in OWN_TIMES:
                        times[name] = max(at, times[name])
                    else:
                        times[name] = at
        stores: set[str] = set()
        for group in self.job.groups:
            if group.window is not None:
                stores.update(column.store for column in group.store_columns)
        if self.part is not None and not stores <= self.kept_stores:
            # The ledger has one time up to which the windows of all groups are closed. The computed
            # groups may have reached an earlier time than the kept groups, so the earlier time is
            # taken.
            snapshot = ledger.snapshots.get(self.old.ref, batch)
            positions = snapshot.positions if snapshot else {}
            partitions = {topic: len(of_topic) for topic, of_topic in positions.items()}
            times[CLOSED] = closed(self.part.job.groups, StreamTimes(computed, partitions, now=0))
            has_kept_windows = bool(stores & self.kept_stores)
            if has_kept_windows:
                times[CLOSED] = min(times[CLOSED], kept.get(CLOSED, BEFORE_ALL))
        return times

    def _names(self, *, is_kept: bool) -> Mapping[str, Collection[str]]:
        """Return earlier name of an operator or group → its names in the new generation.

        If `is_kept` is set, earlier names are from the old generation, otherwise from the
        generation of the changed stores. A group has the name of its first store.
        """
        names: dict[str, set[str]] = defaultdict(set)
        if is_kept:
            info = self.old
            for before, now in self.kept_operators.items():
                names[before].add(now)
        elif self.part is not None:
            info = self.part.info
            for name in info.operators:
                names[name].add(name)
        else:
            return {}
        names_before, names_now = _names_of_groups(info), _names_of_groups(self.new)
        for group in self.groups:
            if group.number not in self.job.groups_by_number:
                continue
            for source in group.inputs:
                if source.kept == is_kept:
                    names[names_before[source.group]].add(names_now[group.number])
        return names


def _names_of_groups(info: GenerationInfo) -> dict[int, str]:
    return {store.group_id: store.name for store in info.stores if not store.store_column}


def processors_of(job: Job) -> dict[str, str]:
    """Return each store of a processor that queries can read → the processor's name."""
    processors: dict[str, str] = {}
    for operator in job.operators:
        processors |= dict.fromkeys(operator.stores, operator.name)
    return processors


def _merge_rows(group: _Group, old: Shard, part: Shard | None, batch: int) -> Iterator[Version]:
    """Yield the sorted rows of a group in the new generation, combined from its inputs' rows."""
    sources: list[Iterator[tuple[int, Version]]] = []
    for number, source in enumerate(group.inputs):
        shard = old if source.kept else part
        if shard is not None:
            # Each row is paired with the number of its input.
            sources.append(zip(repeat(number), newest_rows(shard, source.group)))
    for entry_id, same in groupby(heapq.merge(*sources, key=_entry_id), _entry_id):
        values: dict[int, str] = {}
        kept_batches: list[int] = []
        for number, version in same:
            if version.value is not None:
                values[number] = version.value
            if group.inputs[number].kept:
                kept_batches.append(version.batch)
        value = group.value(values)
        # Kept rows keep the batch that wrote them. Computed rows count as written by the newest
        # batch.
        newest = max(kept_batches, default=batch)
        row = (group.number, *entry_id, value)
        yield Version(*row[:4], newest, value, row_digest(row))


def _entry_id(row: tuple[int, Version]) -> EntryId:
    _, version = row
    return version.key, version.window_start, version.window_end


def _renumber(state: StateVersion, operator: int, batch: int) -> StateVersion:
    digest = state_digest(
        operator, bool(state.shared), state.key, state.due, state.wall, state.state
    )
    return msgspec.structs.replace(state, operator=operator, batch=batch, digest=digest)


def renamed_time(key: str, renamed: Mapping[str, str]) -> str:
    """Return the name of a stream time, with the new names of operators."""
    for former, name in renamed.items():
        for new in _new_names(key, {former: (name,)}):
            if new != key:
                return new
    return key


def _new_names(key: str, names: Mapping[str, Collection[str]]) -> Iterable[str]:
    """Return the names of a stream time in the new generation; none if its operator is gone."""
    name, _, rest = key.partition("/")
    if name == CLOSED and rest:
        return [f"{CLOSED}/{now}" for now in names.get(rest, ())]
    if name in OF_WORKERS:
        operator, _, worker = rest.rpartition("/")
        return [f"{name}/{now}/{worker}" for now in names.get(operator, ())]
    if name in OWN_TIMES:
        return [key]
    suffix = ""
    if name not in names and name.endswith(_SIDES):
        name, dot, side = name.rpartition(".")
        suffix = f"{dot}{side}"
    return [f"{now}{suffix}/{rest}" for now in names.get(name, ())]
