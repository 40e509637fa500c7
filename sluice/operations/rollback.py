"""Makes the state of an earlier generation current again, after a changed pipeline was promoted.

A promotion keeps the generation that was current before, until the next replay or rebuild. A
generation number is never used twice: the markers say which generation has written output last. So
a rollback copies the earlier generation's shards to a generation with a new number. This generation
reads the batches that were published since, without output, and is promoted. The pipeline's file
must be the earlier generation's file again.
"""

from __future__ import annotations

from contextlib import ExitStack

import msgspec
import structlog

from sluice.engine.batch.storage import Storage
from sluice.engine.run.broken_readers import require_kept_interface
from sluice.engine.run.check_without_spark import description_now
from sluice.engine.run.compatibility import computes_same_state
from sluice.engine.run.driver_lease import Lease, this_process
from sluice.errors import EngineError, Refused
from sluice.operations.rebuild import Rebuild, remove_forgotten
from sluice.state.ledger.leases import LeaseRow
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, GenerationRef
from sluice.state.remote.copying import ShardCopy
from sluice.state.remote.opening import open_shard
from sluice.state.shard.shard import Checksums

log = structlog.get_logger()


def roll_back(rebuild: Rebuild) -> int:
    """Make the generation before the current one current again. Return its new number.

    Raise EngineError if no earlier generation is kept; Refused if the pipeline's file is not the
    earlier generation's file; LeaseError while a driver runs; InputError if the topics have lost
    records that the earlier generation has not read.
    """
    settings, name = rebuild.settings, rebuild.job.pipeline.name
    with Ledger.open(settings.ledger) as ledger, rebuild.current(ledger) as lease:
        current = lease.ref
        before = _earlier(ledger, current)
        now, _ = description_now(rebuild.job, settings, before)
        if not computes_same_state(before, now):
            raise Refused(
                f"The file of {name} does not compute the state of generation {before.generation}.",
                next_step="Put the file of that generation in place first, then roll back.",
            )
        replaced = ledger.generations.get(current)
        require_kept_interface(ledger, replaced, before, rebuild.job.pipeline)
        _forget_attempts(ledger, current, before.ref, lease.row)
        snapshot = ledger.snapshots.newest(before.ref)
        audit = ledger.audits.newest(before.ref)
        assert snapshot is not None
        rebuilding = rebuild.with_topics(ledger, current)
        places = ledger.placements.epochs(name)
        new = ledger.generations.new(name, rebuilding.newest_writer(current))
        storage = Storage.of(rebuilding.job, new.generation, settings).placed(ledger.placements)
        workers = tuple(
            msgspec.structs.replace(
                worker, generation=new.generation, location=address, server="", standby=None
            )
            for worker, address in zip(before.workers, storage.locations, strict=True)
        )
        info = msgspec.structs.replace(before, generation=new.generation, workers=workers)
        ledger.generations.register(info, hidden=True, lease=lease.row)
        with Lease(ledger.leases, new, this_process(settings.run or "rollback")) as new_lease:
            checksums: list[Checksums] = []
            epochs: list[int] = []
            with ExitStack() as stack:
                for old, address in zip(before.workers, storage.locations, strict=True):
                    source = stack.enter_context(open_shard(old.location, to_write=True))
                    copy = stack.enter_context(
                        ShardCopy(source, address, until=snapshot.batch, settled=snapshot.batch)
                    )
                    published = None if audit is None else audit.published_checksums(old.number)
                    copy.fill(published)
                    copy.target.seal(sealed=False)
                    epochs.append(copy.target.journal().epoch)
                    checksums.append(copy.target.checksums(snapshot.batch))
            # A copied shard refuses epochs below the epoch with which the original was written
            # last.
            if max(epochs) >= new_lease.epoch:
                new_lease.outrank(max(epochs))
            ledger.generations.inherit(
                new, before.ref, snapshot.batch, checksums, new_lease.epoch, lease.row
            )
        history = rebuilding.steps_since(ledger, current, new)
        rebuilding.build(new, history.published)
        rebuilding.build(new, history.unpublished)
        note = (
            f"Rolled back: generation {new.generation}, with the state of generation "
            f"{before.generation}, replaced generation {current.generation}."
        )
        ledger.generations.promote(new, lease.row, settings.run, note, replayed=True, places=places)
    log.info(
        "generation rolled back",
        pipeline=name,
        generation=new.generation,
        earlier=before.generation,
        before=current.generation,
    )
    return new.generation


def _earlier(ledger: Ledger, current: GenerationRef) -> GenerationInfo:
    """Of the generations before the current one, return the newest that has published something."""
    for number in reversed(ledger.generations.numbers(current.pipeline)):
        ref = GenerationRef(current.pipeline, number)
        if number < current.generation and ledger.snapshots.last_batch(ref) is not None:
            info = ledger.generations.get(ref)
            assert info is not None
            return info
    raise EngineError(
        f"{current.pipeline} no longer has a generation before {current.generation}.",
        next_step="After a promotion, the earlier generation is kept only until the next replay, "
        "deployment or rebuild. Build the earlier state from the topics: "
        f"sluice deploy {current.pipeline}, with "
        "the earlier file.",
    )


def _forget_attempts(
    ledger: Ledger, current: GenerationRef, kept: GenerationRef, lease: LeaseRow
) -> None:
    """Remove the generations after the current one, which an interrupted rollback has left."""
    for number in ledger.generations.numbers(current.pipeline):
        if number > current.generation:
            ledger.generations.forget(GenerationRef(current.pipeline, number), lease)
    remove_forgotten(ledger, current.pipeline)
    assert kept.generation in ledger.generations.numbers(current.pipeline)
