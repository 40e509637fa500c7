"""Renames a pipeline, or its stores and steps, without reading its topics again.

The name of a pipeline is part of its rows in the ledger, of the addresses of its shards, and of the
names of its own topics. Kafka cannot rename a topic, and a state server knows a shard by its
address, so shards and topics are copied:

1. The ledger notes that the renaming has begun, and drivers that have lost their lease are fenced.
2. The topics are copied: markers, dead letters, and the topic of re-drives, which is still empty.
3. The shards are copied, and sealed.
4. The ledger gives the pipeline its new name, in one transaction. Until then, `undo` goes back.
5. The new shards take writes, and the markers of re-drives are copied.
6. The old shards, the old topics and the old consumer group are deleted.

If a call is killed, the next call goes on: before step 4 it copies again, and after step 4 it does
what is left. Runs under the old name are refused from step 4 on, and runs under the new name until
the end. What the pipeline has written to topics and tables stays; the next run takes the tables
over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec
import structlog

from sluice.engine.publish.consumer_group import group_of
from sluice.engine.publish.kafka_transaction import fence
from sluice.engine.publish.markers import Writer
from sluice.engine.run.check_without_spark import description_now
from sluice.engine.run.compatibility import incompatible_changes
from sluice.engine.run.driver_lease import PATIENCE, Lease, Patience, current_lease, this_process
from sluice.errors import AccessDenied, NotFound, Refused, StateError
from sluice.kafka.dead_letter_topic import markers_of, topic_of
from sluice.kafka.redrive_topic import batches_of
from sluice.kafka.topics import delete_group, delete_topics, topic_ids
from sluice.operations.fill_generation import renamed_time
from sluice.operations.rebuild import remove_forgotten
from sluice.operations.renamed_topics import (
    copy_dead_letters,
    copy_redrives,
    create_copies,
    fence_redrives,
    write_markers,
)
from sluice.operations.store_readers import readers_of
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger.generations import unknown_pipeline
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.state.ledger.renames import Kind
from sluice.state.model import GenerationInfo, GenerationRef, StoreInfo
from sluice.state.remote.copying import ShardCopy
from sluice.state.remote.opening import drop_shard, open_shard
from sluice.state.shard.addresses import is_file, is_remote, location, shown
from sluice.values.phrases import counted, joined

log = structlog.get_logger()


def own_topics(pipeline: str) -> tuple[str, str, str]:
    """Return the names of a pipeline's own topics: for markers, dead letters, and re-drives."""
    return batches_of(pipeline), topic_of(pipeline), markers_of(pipeline)


@dataclass(frozen=True)
class Renaming:
    """What a renaming changes, or what a killed call has left to do."""

    old: str
    new: str
    phase: str
    """As in `renames.Phase`; empty before the renaming has begun."""
    generations: tuple[int, ...]
    stores: tuple[str, ...]
    shards: tuple[tuple[str, str], ...]
    """The address of each shard before and after, without passwords."""
    topics: tuple[tuple[str, str], ...]
    """The name of each topic before and after."""
    readers: tuple[str, ...] = ()
    """The other pipelines that read this pipeline's stores."""

    def lines(self) -> Iterator[str]:
        """Describe what changes, in sentences."""
        numbers = counted(len(self.generations), "generation")
        if self.phase == "switched":
            yield f"The ledger has the new name already. What is left of {self.old} is removed:"
        else:
            yield f"The ledger's rows of {self.old}, with {numbers}, get the name {self.new}."
        for before, after in self.shards:
            yield f"Shard: {before} becomes {after}."
        for before, after in self.topics:
            yield f"Topic: {before} becomes {after}."
        yield f"Consumer group: {group_of(self.old)} becomes {group_of(self.new)}."
        if self.stores:
            yield (
                f"Stores are queried at the new name: {', '.join(self.stores)}. "
                f"Queries by the old name get an error that gives the new name."
            )

    def next_lines(self) -> Iterator[str]:
        """Describe the changes that a person still has to make outside of Sluice's state."""
        yield f'In the pipeline\'s file, write Pipeline("{self.new}").'
        if self.readers:
            yield (
                f"In the files of {joined(self.readers)}, which read its stores, write "
                f'store_of("{self.new}", ...). If a lookup_in has no answers=, also write '
                f'answers="{self.old}_STORE". Until then, these pipelines do not run.'
            )
        yield (
            f"In sluice.toml, DAG files, alerts and dashboards, replace {self.old} by {self.new}. "
            "The DAG, the trigger and the card take the new name from the pipeline's file. In "
            f"Airflow, give {self.new} the permissions of {self.old}."
        )
        yield (
            "Airflow keeps the history of the old DAG. To delete it: "
            f"airflow dags delete {self.old}"
        )


def find_renaming(ledger: Ledger, settings: Settings, old: str, new: str) -> Renaming:
    """Find what a renaming changes. Raise NotFound or Refused if it cannot be done."""
    begun = ledger.renames.of(old)
    if begun is not None and begun.name != new:
        raise Refused(
            f"{old} was renamed to {begun.name}, or its renaming has begun.",
            next_step=f"See what is left to do: sluice rename {old} {begun.name}",
        )
    phase = "" if begun is None else begun.phase
    if phase in ("", "done") and ledger.generations.current_number(old) is None:
        if phase == "done":
            raise Refused(
                f"{old} was renamed to {new} already.",
                next_step=f"See sluice status {new}.",
            )
        raise unknown_pipeline(old)
    if phase == "done":
        phase = ""
    switched = phase == "switched"
    if not switched:
        _require_possible(ledger, settings, old, new, begun=phase == "begun")
    infos = ledger.generations.all(new if switched else old)
    stores: list[str] = []
    shards: list[tuple[str, str]] = []
    for info in infos:
        stores += info.stores_by_name
        for worker in info.workers:
            ref = GenerationRef(new, info.generation)
            before, after = (
                worker.location,
                new_address(ledger, settings, worker.ref, ref, worker.number),
            )
            if switched:
                former = GenerationRef(old, info.generation)
                before, after = location(settings.shards, former, worker.number), worker.location
            shards.append((shown(before), shown(after)))
    names = zip(own_topics(old), own_topics(new), strict=True)
    existing = topic_ids(settings.kafka, own_topics(old))
    return Renaming(
        old,
        new,
        phase,
        generations=tuple(info.generation for info in infos),
        stores=tuple(dict.fromkeys(sorted(stores))),
        shards=tuple(shards),
        topics=tuple((before, after) for before, after in names if before in existing),
        readers=tuple(readers_of(ledger, new if switched else old)),
    )


def _require_possible(
    ledger: Ledger, settings: Settings, old: str, new: str, *, begun: bool
) -> None:
    if old == new:
        raise Refused(
            f"The pipeline already has the name {old}.", next_step="Choose another new name."
        )
    if standbys := ledger.standbys.of(old):
        workers = joined(list(map(str, sorted(standbys))))
        raise Refused(
            f"{old} has standbys for the workers {workers}.",
            next_step=f"Remove the standbys first: sluice standby remove {old} WORKER. Add them "
            "again afterwards.",
        )
    if ledger.generations.forgotten(old):
        raise Refused(
            f"Shards of an earlier generation of {old} have not been deleted yet.",
            next_step=f"Run {old} once, which deletes them, or call: sluice rebuild {old}.",
        )
    former = ledger.renames.of(new)
    if former is not None and former.pipeline != old and not begun:
        raise Refused(
            f"{new} is the former name of {former.name}.",
            next_step=f"Choose another name, or forget the former name: sluice remove {new}.",
        )
    if new in ledger.generations.pipelines() or ledger.generations.forgotten(new):
        raise Refused(
            f"The ledger already has a pipeline {new!r} or shards of it.",
            next_step=f"Choose another name, or remove that pipeline: sluice remove {new}.",
        )
    if not begun and (existing := topic_ids(settings.kafka, own_topics(new))):
        raise Refused(
            f"{' and '.join(existing)} exist already, so a pipeline {new} has run before.",
            next_step=f"Choose another name, or remove what is left: sluice remove {new} --yes.",
        )


def rename(settings: Settings, old: str, new: str, *, patience: Patience = PATIENCE) -> Renaming:
    """Rename a pipeline, or go on where a killed call has stopped. Return what has changed.

    Raise LeaseError while the pipeline runs or is rebuilt; Refused if another pipeline has the
    name, or if the pipeline has standbys.
    """
    with Ledger.open(settings.ledger) as ledger:
        renaming = find_renaming(ledger, settings, old, new)
        if renaming.phase != "switched":
            _copy_and_switch(ledger, settings, old, new, patience)
        _finish(ledger, settings, old, new)
    log.info("pipeline renamed", before=old, pipeline=new)
    return renaming


def undo(settings: Settings, old: str, new: str) -> None:
    """Go back to the old name: remove the copies of a renaming that was interrupted.

    Raise Refused if no renaming has begun, or if the ledger has the new name already.
    """
    with Ledger.open(settings.ledger) as ledger:
        begun = ledger.renames.of(old)
        if begun is None or begun.name != new or begun.phase != "begun":
            is_switched = begun is not None and begun.phase == "switched"
            raise Refused(
                f"No renaming of {old} to {new} can be undone.",
                next_step=f"Finish the renaming: sluice rename {old} {new} --yes."
                if is_switched
                else "",
            )
        with _all_leases(ledger, settings, old, PATIENCE):
            for info in ledger.generations.all(old):
                for worker in info.workers:
                    ref = GenerationRef(new, info.generation)
                    address = new_address(ledger, settings, info.ref, ref, worker.number)
                    try:
                        drop_shard(address)
                    except Refused:
                        # A state server that was restarted does not expect the copy any more. The
                        # server keeps the copy sealed, until another copy takes its place.
                        if not is_remote(address):
                            raise
            delete_topics(settings.kafka, own_topics(new))
            ledger.renames.forget(old)


def _copy_and_switch(
    ledger: Ledger, settings: Settings, old: str, new: str, patience: Patience
) -> None:
    with _all_leases(ledger, settings, old, patience) as leases:
        current = leases[0].ref
        ledger.renames.begin(leases[0].row, new)
        output = fence(settings.kafka, Writer(current, batches_of(old)))
        output.require_newest()
        before = ledger.generations.all(old)
        infos = [_renamed_info(ledger, settings, info, new) for info in before]
        create_copies(settings.kafka, own_topics(old), own_topics(new))
        copy_dead_letters(settings.kafka, old, new)
        write_markers(settings.kafka, old, new, current, infos)
        shards: dict[tuple[int, int], str] = {}
        for info, renamed in zip(before, infos, strict=True):
            addresses = {worker.number: worker.location for worker in renamed.workers}
            for number, address in addresses.items():
                shards[info.generation, number] = address
            _copy_shards(ledger, info, addresses)
        rows = [lease.row for lease in leases]
        ledger.renames.switch(rows, new, shards)


@contextmanager
def _all_leases(
    ledger: Ledger, settings: Settings, pipeline: str, patience: Patience
) -> Iterator[Sequence[Lease]]:
    """Yield the leases of all generations of a pipeline, the current one first.

    A generation that is being filled by a rebuild has its own lease.
    """
    holder = this_process(settings.run or "rename")
    with ExitStack() as stack:
        current = stack.enter_context(current_lease(ledger, pipeline, holder, patience))
        leases = [current]
        for number in ledger.generations.numbers(pipeline):
            if number != current.ref.generation:
                ref = GenerationRef(pipeline, number)
                leases.append(stack.enter_context(Lease(ledger.leases, ref, holder, patience)))
        yield leases


def new_address(
    ledger: Ledger,
    settings: Settings,
    before: GenerationRef,
    ref: GenerationRef,
    number: int,
) -> str:
    """Return the address that a worker's shard gets with the new name of its pipeline."""
    address = location(settings.shards, ref, number)
    placement = ledger.placements.of(before.pipeline).get(number)
    if placement is None or not is_file(address):
        return address
    renamed = Placement(ref.pipeline, number, placement.host, placement.port, placement.tls)
    return renamed.shard(ref)


def _renamed_info(
    ledger: Ledger, settings: Settings, info: GenerationInfo, new: str
) -> GenerationInfo:
    """Return a generation as it is registered with the new name."""
    ref = GenerationRef(new, info.generation)
    workers = tuple(
        msgspec.structs.replace(
            worker,
            pipeline=new,
            location=new_address(ledger, settings, info.ref, ref, worker.number),
            server="",
        )
        for worker in info.workers
    )
    stores = tuple(msgspec.structs.replace(store, pipeline=new) for store in info.stores)
    return msgspec.structs.replace(info, pipeline=new, workers=workers, stores=stores)


def _copy_shards(ledger: Ledger, info: GenerationInfo, addresses: Mapping[int, str]) -> None:
    """Copy a generation's shards to their new addresses, and leave the copies sealed.

    `addresses`: number of a worker → its shard's new address. A generation without a snapshot needs
    no copy: its next run creates its shards.
    """
    published = ledger.snapshots.last_batch(info.ref)
    if published is None:
        return
    audit = ledger.audits.newest(info.ref)
    for worker in info.workers:
        if worker.unavailable:
            raise StateError(
                f"Worker {worker.number} of {info.pipeline} is quarantined: {worker.unavailable}",
                next_step=f"Rebuild its state first: sluice rebuild {info.pipeline}.",
            )
        checksums = None if audit is None else audit.published_checksums(worker.number)
        address = addresses[worker.number]
        with (
            open_shard(worker.location, to_write=True) as source,
            ShardCopy(source, address, until=published, settled=published) as copy,
        ):
            copy.fill(checksums)


def _finish(ledger: Ledger, settings: Settings, old: str, new: str) -> None:
    """Do what is left after the ledger has the new name."""
    for info in ledger.generations.all(new):
        if ledger.snapshots.last_batch(info.ref) is not None:
            for worker in info.workers:
                with open_shard(worker.location, to_write=True) as shard:
                    shard.seal(sealed=False)
    copy_redrives(settings.kafka, old, new)
    remove_forgotten(ledger, old)
    if left := ledger.generations.forgotten(old):
        places: list[str] = []
        for workers in left.values():
            places += [shown(worker.location) for worker in workers]
        raise StateError(
            f"These shards of {old} could not be deleted: {', '.join(places)}. "
            f"The pipeline has the name {new} now.",
            next_step="When the database or server of these shards answers, repeat: sluice "
            f"rename {old} {new} --yes.",
        )
    fence_redrives(settings.kafka, old)
    delete_topics(settings.kafka, own_topics(old))
    try:
        delete_group(settings.kafka, group_of(old))
    except AccessDenied as error:
        # If Kafka denies the deletion, leave the group: Kafka itself forgets the offsets of an
        # unused group.
        log.warning("consumer group not deleted", pipeline=old, why=error.detail)
    ledger.renames.finish(old)


def rename_parts(
    job: Job,
    settings: Settings,
    names: Mapping[tuple[Kind, str], str],
    *,
    only_look: bool = False,
    patience: Patience = PATIENCE,
) -> Iterator[str]:
    """Rename stores and steps, and yield what changes, in sentences.

    `job` is planned from the pipeline's file, which has the new names already. `names`: kind and
    former name → new name. Raise NotFound if a store or step does not exist, Refused if the file
    differs from the state in anything but these names, and LeaseError while the pipeline runs.
    """
    name = job.pipeline.name
    with Ledger.open(settings.ledger) as ledger:
        if only_look:
            before = ledger.generations.current(name)
            if before is None:
                raise unknown_pipeline(name)
            _renamed_parts(job, settings, ledger, before, names)
            return iter([*_lines(names, name, readers_of(ledger, name))])
        holder = this_process(settings.run or "rename")
        with current_lease(ledger, name, holder, patience) as lease:
            before = ledger.generations.get(lease.ref)
            if before is None:
                raise unknown_pipeline(name)
            if ledger.plans.unpublished(lease.ref) is not None:
                raise Refused(
                    f"The last run of {name} was interrupted, and its batch needs the names as "
                    "they were.",
                    next_step="Undo the change of the file, and run the pipeline once: sluice "
                    f"run {name}. Then rename.",
                )
            after = _renamed_parts(job, settings, ledger, before, names)
            renamed = {former: now for (_, former), now in names.items()}
            ledger.renames.rename_parts(
                lease.row, after, names, lambda key: _renamed_key(key, renamed)
            )
        readers = readers_of(ledger, name)
    return iter([*_lines(names, name, readers)])


def _lines(
    names: Mapping[tuple[Kind, str], str], pipeline: str, readers: Sequence[str]
) -> Iterator[str]:
    for (kind, former), name in names.items():
        yield f"The {kind} {former} becomes {name}, and keeps its state."
    if any(kind == "store" for kind, _ in names):
        yield (
            "Queries by an old name get an error that gives the new name. Airflow's assets get the "
            "new names."
        )
        if readers:
            yield (
                f"In the files of {joined(readers)}, which read stores of {pipeline}, write the "
                "new names in store_of. If a lookup_in has no answers=, also write "
                f'answers="{pipeline}_OLD", with the old name of the store. Until then, the '
                "pipelines that read a renamed store do not run."
            )


def _renamed_parts(
    job: Job,
    settings: Settings,
    ledger: Ledger,
    before: GenerationInfo,
    names: Mapping[tuple[Kind, str], str],
) -> GenerationInfo:
    """Return the generation with the new names. Raise NotFound or Refused if a name is wrong."""
    stores = {store.name for store in before.stores}
    known: dict[Kind, set[str]] = {"store": stores, "step": {*before.operators} - stores}
    for (kind, former), name in names.items():
        if former not in known[kind]:
            raise NotFound(
                f"{before.pipeline} has no {kind} {former!r}.",
                next_step=f"It has: {', '.join(sorted(known[kind])) or 'none'}.",
            )
        if name in stores | before.operators.keys():
            raise Refused(
                f"{before.pipeline} has a store or step {name!r} already.",
                next_step=f"Choose another new name for the {kind} {former!r}.",
            )
    renamed = {former: name for (_, former), name in names.items()}
    rename_text = _renaming(renamed)
    renamed_stores: list[StoreInfo] = []
    for store in before.stores:
        renamed_stores.append(
            msgspec.structs.replace(
                store, name=renamed.get(store.name, store.name), made=rename_text(store.made)
            )
        )
    operators: dict[str, str] = {}
    for operator, definition in before.operators.items():
        operators[renamed.get(operator, operator)] = rename_text(definition)
    after = msgspec.structs.replace(before, stores=tuple(renamed_stores), operators=operators)
    now, _ = description_now(job, settings, after)
    if changes := incompatible_changes(after, now):
        raise Refused(
            f"The file of {before.pipeline} differs from its state by more than these names: "
            f"{'; '.join(changes)}. Nothing was changed.",
            next_step="Give the stores and steps their new names in the file, and change nothing "
            "else. Then rename, and then make other changes.",
        )
    return after


def _renaming(renamed: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that renames the stores in a definition, such as `store a > store b`."""
    if not renamed:
        return lambda text: text
    names = "|".join(re.escape(name) for name in renamed)
    pattern = re.compile(rf"(?<![\w.-])store ({names})(?![\w.-])")
    return lambda text: pattern.sub(lambda match: f"store {renamed[match[1]]}", text)


_OF_TOPICS = ("dead_letter", "dropped", "unwritten", "output")
"""The counts whose keys end with a reason or a topic, not with the name of a store or step."""


def _renamed_key(key: str, renamed: Mapping[str, str]) -> str:
    """Return the key of a count, or of a stream time, with the new names."""
    kind, slash, rest = key.partition("/")
    if kind in _OF_TOPICS or not slash:
        return key
    if rest in renamed:  # the key of a count, such as `late/STORE`
        return f"{kind}/{renamed[rest]}"
    return renamed_time(key, renamed)
