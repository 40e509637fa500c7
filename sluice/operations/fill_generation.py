"""Fills a new generation's shards with the kept state of the old generation and the computed state of changed stores.

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
from sluice.plan.operator_parameters import Suppress
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
"""What follows an operator's name in the names of its stream times: `.any` for all of its rows, `.0`
and `.1` for the left and the right input of a join (see `engine.stages.timeline`)."""


@dataclass(frozen=True)
class ComputedStores:
    """The job of the changed stores, and its generation."""

    job: Job
    info: GenerationInfo


@dataclass(frozen=True)
class _Input:
    """A group of the old generation, or of the changed stores, from which a new group gets values."""

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
    """The groups from which the values come. There are several if stores share rows now whose rows
    were separate before, or if some stores are kept and others computed."""
    columns: tuple[tuple[int, int], ...]
    """For each store: the index in `inputs` of the group from which its value comes, and its column
    in that group."""
    missing: tuple[bytes, ...]
    """For each store, the value of a key for which it has read no record."""

    def value(self, of_inputs: Mapping[int, str]) -> str:
        """Combine a row's values from the inputs that contain the row."""
        if len(self.inputs) == 1 and [column for _, column in self.columns] == [
            *range(self.inputs[0].stores)
        ]:
            return of_inputs[0]
        decoded = {number: _decode(text) for number, text in of_inputs.items()}
        values: list[bytes] = []
        for (number, column), missing in zip(self.columns, self.missing, strict=True):
            values.append(bytes(decoded[number][column]) if number in decoded else missing)
        times: list[int] = []
        for number, row in decoded.items():
            times += [int(bytes(time)) for time in row[self.inputs[number].stores :]]
        if times:
            values.append(str(max(times)).encode())
        return f"[{b','.join(values).decode()}]"


_decode = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Merge:
    """Fills the shards of a new generation from the shards of the old generation and of the changed stores."""

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
            # A suppress step holds results back. If a step after it has changed, that step may need
            # the value that each of these results replaces (`Waiting.old`). The old generation's
            # state may lack this value, so the suppress step gets the computed state.
            held_back = {
                operator.name
                for operator in part.job.operators
                if isinstance(operator.action, Suppress)
            }
            operators = {before: now for before, now in operators.items() if now not in held_back}
        self.kept_operators = operators
        # The stores of a kept processor are kept, too, because they are part of its state. A store
        # that was added to a kept processor begins empty.
        of_processor = processors_of(job)
        self.kept_stores = (changes.stores - of_processor.keys()) | {
            store for store, operator in of_processor.items() if operator in operators.values()
        }
        self.groups = [*self._groups()]

    def _groups(self) -> Iterator[_Group]:
        sources = {
            True: _stores_by_name(self.old),
            False: {} if self.part is None else _stores_by_name(self.part.info),
        }
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
        """The value of a key for which a store has read no record: 0 for counts, otherwise null."""
        of_job = self.job.groups_by_number.get(group)
        if of_job is None:
            return b"null"
        column = next(column for column in of_job.store_columns if column.store == store)
        values = {
            name: 0 if aggregate.function == "count" else None for name, aggregate in column.columns
        }
        return msgspec.json.encode(next(iter(values.values())) if column.scalar else values)

    def fill(self, batch: int, audit: Audit | None, epoch: int) -> list[Checksums]:
        """Fill the shards with the state of `batch`. Returns their checksums.

        Raises DamagedState if the state of the old generation is not as published.
        """
        checksums = []
        for worker in self.new.workers:
            with ExitStack() as stack:
                # An earlier call that was killed may have left a part of the shard, which `anew`
                # replaces.
                target = NewShard(stack.enter_context(create_shard(worker.location, anew=True)))
                location = self.old.workers[worker.number].location
                old = stack.enter_context(worker_shard(worker.number, location))
                published = None if audit is None else audit.published_checksums(worker.number)
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
                    for answers in () if shard is None else pages_of_answers(shard):
                        target.add_answers(answers)
                checksums.append(target.finish(batch, epoch))
        return checksums

    def _states(self, old: Shard, part: Shard | None, batch: int) -> Iterator[StateVersion]:
        now = {name: number_of(definition) for name, definition in self.new.operators.items()}
        numbers = {
            number_of(self.old.operators[before]): now[name]
            for before, name in self.kept_operators.items()
        }
        for state in newest_states(old):
            if (number := numbers.get(state.operator)) is not None:
                yield _renumber(state, number, state.batch)
        if part is None or self.part is None:
            return
        kept = {*self.kept_operators.values()}
        computed = {
            number_of(text): now[name]
            for name, text in self.part.info.operators.items()
            if name not in kept
        }
        for state in newest_states(part):
            if (number := computed.get(state.operator)) is not None:
                yield _renumber(state, number, batch)

    def times(self, ledger: Ledger, batch: int) -> dict[str, int]:
        """The stream times from which the next batch continues."""
        kept, computed = ledger.snapshots.times_before(self.old.ref, batch + 1), dict[str, int]()
        if (
            self.part is not None
            and (last := ledger.snapshots.last_batch(self.part.info.ref)) is not None
        ):
            computed = ledger.snapshots.times_before(self.part.info.ref, last + 1)
        times: dict[str, int] = {}
        # Kept times come last. Both sources have the times that belong to no operator, such as
        # `:seen`, and the kept ones must replace the computed ones.
        for is_kept, of_source in ((False, computed), (True, kept)):
            names = self._names(is_kept=is_kept)
            for key, at in of_source.items():
                for name in _new_names(key, names):
                    times[name] = (
                        at if name.split("/")[0] in OWN_TIMES else max(at, times.get(name, at))
                    )
        groups = [group for group in self.job.groups if group.window is not None]
        stores = {column.store for group in groups for column in group.store_columns}
        if self.part is not None and not stores <= self.kept_stores:
            # The ledger has one time up to which the windows of all groups are closed. The computed
            # groups may have reached an earlier time than the kept groups, so the earlier is taken.
            snapshot = ledger.snapshots.get(self.old.ref, batch)
            positions = snapshot.positions if snapshot else {}
            partitions = {topic: len(of_topic) for topic, of_topic in positions.items()}
            of_part = closed(self.part.job.groups, StreamTimes(computed, partitions, now=0))
            has_kept_windows = bool(stores & self.kept_stores)
            times[CLOSED] = (
                min(of_part, kept.get(CLOSED, BEFORE_ALL)) if has_kept_windows else of_part
            )
        return times

    def _names(self, *, is_kept: bool) -> Mapping[str, Collection[str]]:
        """Name of an operator or group → its names in the new generation.

        With `is_kept`, takes the names from the old generation; otherwise from the changed stores'
        generation. A group has the name of its first store.
        """
        if is_kept:
            info = self.old
        elif self.part is not None:
            info = self.part.info
        else:
            return {}
        operators = self.kept_operators if is_kept else {name: name for name in info.operators}
        names: dict[str, set[str]] = defaultdict(
            set, {before: {now} for before, now in operators.items()}
        )
        before, now = _names_of_groups(info), _names_of_groups(self.new)
        for group in self.groups:
            for source in group.inputs if group.number in self.job.groups_by_number else ():
                if source.kept == is_kept:
                    names[before[source.group]].add(now[group.number])
        return names


def _names_of_groups(info: GenerationInfo) -> dict[int, str]:
    return {store.group_id: store.name for store in info.stores if not store.store_column}


def processors_of(job: Job) -> dict[str, str]:
    """Store of a processor, if queries can read it → the processor's name."""
    processors: dict[str, str] = {}
    for operator in job.operators:
        processors |= dict.fromkeys(operator.stores, operator.name)
    return processors


def _merge_rows(group: _Group, old: Shard, part: Shard | None, batch: int) -> Iterator[Version]:
    """The sorted rows of a group in the new generation, combined from the rows of its inputs."""
    shards = [old if source.kept else part for source in group.inputs]
    sources: list[Iterator[tuple[int, Version]]] = []
    for number, (source, shard) in enumerate(zip(group.inputs, shards, strict=True)):
        if shard is not None:
            # Each row is paired with the number of its input.
            sources.append(zip(repeat(number), newest_rows(shard, source.group)))
    for entry_id, same in groupby(heapq.merge(*sources, key=_entry_id), _entry_id):
        rows = dict(same)
        value = group.value(
            {number: row.value for number, row in rows.items() if row.value is not None}
        )
        # Kept rows keep the batch that wrote them. Computed rows count as written by the newest
        # batch.
        newest = max(
            (row.batch for number, row in rows.items() if group.inputs[number].kept), default=batch
        )
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


def _stores_by_name(info: GenerationInfo) -> dict[str, StoreInfo]:
    return {store.name: store for store in info.stores}


def _new_names(key: str, names: Mapping[str, Collection[str]]) -> Iterable[str]:
    """The names of a stream time in the new generation; none if its operator is gone."""
    name, _, rest = key.partition("/")
    if name == CLOSED and rest:
        return [f"{CLOSED}/{now}" for now in names.get(rest, ())]
    if name in OF_WORKERS:
        operator, _, worker = rest.rpartition("/")
        return [f"{name}/{now}/{worker}" for now in names.get(operator, ())]
    if name in OWN_TIMES:
        return [key]
    suffix = next((side for side in _SIDES if name not in names and name.endswith(side)), "")
    return [f"{now}{suffix}/{rest}" for now in names.get(name.removesuffix(suffix), ())]
