"""Turns the errors of a Spark query into the errors of Sluice that caused them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import StreamingQueryException

from sluice.engine.batch.storage import Storage
from sluice.engine.run.driver_lease import Lease
from sluice.engine.steps.sql_errors import no_result_error
from sluice.engine.steps.worker_errors import worker_error
from sluice.errors import DamagedState, EngineError, LeaseError, SluiceError, sentence
from sluice.state.shard.addresses import shown

_FULL_DISK = "No space left on device"
_LEASE_LOST = re.compile(r"sluice\.errors\.LeaseError: (This driver has lost its lease[^\n]*)")
_DAMAGED = re.compile(
    r"sluice\.errors\.DamagedState: (Worker (\d+)'s shard [^\n]*?)(?: "
    + re.escape(DamagedState.next_step)
    + r")?$",
    re.MULTILINE,
)
_PYTHON_ERROR = re.compile(r"[A-Za-z_.]+(Error|Exception|Crash): ")


@contextmanager
def query_errors(storage: Storage, lease: Lease) -> Iterator[None]:
    """Raise the error of publishing, or else an EngineError with the cause of Spark's error.

    Errors of a file system, such as a full disk, become EngineErrors too. Spark's error has only
    the text of other errors.
    """
    try:
        yield
    except StreamingQueryException as failed:
        # If another driver has taken over the lease, it may have changed the shards while this
        # query was running. Then the lost lease is the real cause of the query's error.
        lease.require_in_ledger()
        # The error that publishing raised. Spark's error has only its text.
        if isinstance(failed.__cause__, SluiceError):
            raise failed.__cause__ from None
        message = str(failed)
        # Tasks fail in Python workers, so Spark has only the text of their errors.
        error = _task_error(storage, message) or no_result_error(storage.job, message)
        if error is not None:
            raise error from None
        advice = "Nothing from the batch was published; the next run retries it."
        if _FULL_DISK in message:
            full = "A disk is full, for example the disk with the shards or with temporary files"
            advice = f"{full}: free some space. {advice}"
        raise EngineError(
            f"The query of {storage.job.pipeline.name} failed: {sentence(_cause(message))}",
            next_step=advice,
        ) from failed
    except ConnectionError:
        raise  # `jvm_errors` reports that the JVM has ended.
    except OSError as failed:
        raise EngineError(
            f"{storage.job.pipeline.name} cannot read or write a file: {sentence(failed)}",
            next_step="Nothing from the batch was published. Check the free space, then run again.",
        ) from failed


def _task_error(storage: Storage, message: str) -> SluiceError | None:
    """Return the error of a task, if Spark's message has it.

    Possible causes: the driver has lost its lease, a shard is damaged, or a Python worker has
    failed.
    """
    if (lost := _LEASE_LOST.search(message)) is not None:
        return LeaseError(lost[1], next_step="Wait until the other driver has finished.")
    if (damaged := _DAMAGED.search(message)) is not None:
        worker = int(damaged[2])
        error = DamagedState(damaged[1], workers={worker: shown(storage.locations[worker])})
        error.next_step = (
            f"Restore the shard, or rebuild the state: sluice rebuild {storage.job.pipeline.name}."
        )
        return error
    return worker_error(storage.job, message)


def _cause(message: str) -> str:
    """Return the innermost cause in Spark's message, without the stack trace."""
    lines: list[str] = []
    causes: list[str] = []
    raised: list[str] = []
    # Java writes the chain of causes from the outermost to the innermost, so the last of these
    # lines has the innermost cause.
    prefix = "Caused by: "
    for line in message.splitlines():
        lines.append(line.strip())
        if lines[-1].startswith(prefix):
            causes.append(lines[-1].removeprefix(prefix))
        elif _PYTHON_ERROR.match(lines[-1]):
            raised.append(lines[-1])
    summary = message.partition("terminated with exception: ")[2].splitlines()[:1]
    return (causes or raised or summary or lines)[-1][:500]
