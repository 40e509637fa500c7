"""Copies the current generation's recorded answers to a new one, which then repeats no calls."""

from __future__ import annotations

import structlog
from msgspec.structs import replace

from sluice.engine.batch.storage import Storage
from sluice.engine.batch.worker_shards import worker_shard
from sluice.errors import StateError
from sluice.plan.operator_parameters import CallParameters, TableLookupParameters
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from sluice.state.shard.answer_rows import RecordedAnswer, by_worker
from sluice.state.shard.pages import pages_of_answers

log = structlog.get_logger()


def inherit_answers(ledger: Ledger, storage: Storage, epoch: int) -> None:
    """Copy the answers of the job's steps to a new generation from the current one.

    The worker that owns an answer's key gets the answer.

    If a shard is lost or damaged, its answers are left out, and the rebuild makes their calls
    again.
    """
    steps: set[str] = set()
    for operator in storage.job.operators:
        if isinstance(operator.action, CallParameters | TableLookupParameters):
            steps.add(operator.action.answers)
    name = storage.job.pipeline.name
    number = ledger.generations.current_number(name)
    if not steps or number is None or number == storage.generation:
        return
    current = ledger.generations.get(GenerationRef(name, number))
    if current is None:
        return
    for worker in current.workers:
        try:
            with worker_shard(worker.number, worker.location) as shard:
                for page in pages_of_answers(shard):
                    inherited: list[RecordedAnswer] = []
                    for answer in page:
                        if answer.step in steps:
                            inherited.append(replace(answer, batch=-1))
                    _write(storage, inherited, epoch)
        except StateError as error:
            log.warning("answers lost", pipeline=name, worker=worker.number, why=error.detail)


def _write(storage: Storage, answers: list[RecordedAnswer], epoch: int) -> None:
    for worker, of_worker in by_worker(answers, len(storage.locations)).items():
        with storage.shard(worker) as shard:
            shard.write_answers(of_worker, epoch)
