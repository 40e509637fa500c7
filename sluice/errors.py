"""The exceptions that Sluice raises, each with an HTTP status, a title and the next step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self


class SluiceError(Exception):
    """Base class. `detail` says what is wrong and where; `next_step` says how to fix it."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Sluice error"
    next_step: str = ""
    is_lasting: ClassVar[bool] = False
    """Whether the same run would fail again. If so, repeating the run is useless until somebody
    changes something."""
    extensions: Mapping[str, Any] = MappingProxyType({})
    """Additional members of the problem document (RFC 9457) in which the REST API reports the
    error."""

    def __init__(
        self,
        detail: str,
        *,
        next_step: str = "",
        extensions: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.next_step = next_step or type(self).next_step
        self.extensions = type(self).extensions if extensions is None else extensions

    def __str__(self) -> str:
        return f"{self.detail} {self.next_step}".strip()


class SettingsError(SluiceError):
    """A setting is missing or has an invalid value."""

    title = "Invalid setting"
    is_lasting = True


class PreflightError(SluiceError):
    """The machine lacks something that Sluice needs, such as Java, a free port, memory or a jar."""

    title = "This machine is not ready"
    is_lasting = True


class TopologyError(SluiceError):
    """A pipeline is invalid, for example because of an unknown field, a reused name, or bad SQL."""

    status = 422
    title = "Invalid topology"
    is_lasting = True


class RouteError(SluiceError):
    """A file of routes cannot be imported, or one of its routes is invalid."""

    title = "Invalid route"


class EngineError(SluiceError):
    """A run could not start, or had to stop, for a reason other than a single record."""

    title = "The run stopped"


class RecordFailed(EngineError):
    """A record cannot be read, processed or written, and `on_error="fail"` applies to it."""

    is_lasting = True


class RecordsRejected(EngineError):
    """Too many records of a batch were rejected.

    The pipeline or a producer probably has an error.
    """

    title = "Too many records were rejected"
    is_lasting = True


class ExpectationBroken(RecordsRejected):
    """Too many records of a batch break an expectation of the pipeline."""

    title = "Records are not as expected"


class InputAway(EngineError):
    """A pipeline waits for brokers or topics. It continues by itself once they are available."""

    status = 503
    title = "The input is away"
    next_step = "The pipeline starts by itself when the input is back."


class RecordsHeld(EngineError):
    """An open transaction of a producer holds back records of a pipeline."""

    title = "A transaction holds back records"
    next_step = "Find the producer and stop it, or end its transaction with kafka-transactions.sh."


class NoSlot(EngineError):
    """Airflow was asked for a run of a pipeline and has not started the run's task."""

    title = "Airflow does not start the run"
    next_step = (
        "Look at the DAG in Airflow: its pool may have no free slot, the DAG may be paused, or no "
        "worker takes the task. The run starts by itself as soon as the cause is gone."
    )


class WaitsForLease(EngineError):
    """A driver waits for another driver, which holds the pipeline's lease."""

    title = "Another driver holds the lease"
    next_step = "Wait until that driver has finished, or end its process."


class HostSilent(EngineError):
    """A state server does not answer, so queries of its workers are partial and runs fail."""

    status = 503
    title = "A state server does not answer"
    next_step = (
        "Start the state server again on its host, or promote its standbys: sluice standby promote."
    )


class DiskNearlyFull(EngineError):
    """The disk with the ledger or with shards has little space left."""

    title = "A disk is nearly full"
    next_step = "Make space, or keep fewer snapshots: see the DAG sluice_retention."


class ClockOff(EngineError):
    """Two machines disagree about the time."""

    title = "A clock is off"
    next_step = (
        "Check that the hosts synchronize their clocks, for example with chrony: chronyc tracking."
    )


class StateGrows(EngineError):
    """The state of a pipeline has grown on every day of a week, and has doubled in this week."""

    title = "The state grows without a bound"
    next_step = "Give the pipeline's windows a retention, or its tables a way to delete keys."


class SchemasDiffer(EngineError):
    """When last compared, a contract of the pipeline and a schema in the registry did not match."""

    title = "Contract and registry do not fit"
    next_step = (
        "Change the contract, or register a schema that fits: sluice schema push PIPELINE. Then "
        "compare again: sluice schema check PIPELINE."
    )


class RetentionFailed(EngineError):
    """Old snapshots, or rows that only these need, could not be deleted, so the state grows."""

    title = "Retention failed"
    next_step = (
        "Remove the cause. To repeat retention before the next day, trigger the DAG "
        "sluice_retention."
    )


class OverBudget(EngineError):
    """The runs of a day have cost more than a budget in a file `sluice.toml`. No run is stopped."""

    title = "More than the budget"
    next_step = "See Costs on the page. Let runs start less often, or raise budget in sluice.toml."


class BrokersUnreachable(EngineError):
    """No Kafka broker answers at the configured address."""

    status = 503
    title = "Kafka does not answer"
    next_step = (
        "Check that a broker runs there and is reachable. "
        "SLUICE_KAFKA or Airflow's connection sets the address."
    )


class AccessDenied(BrokersUnreachable):
    """Kafka denies this client an operation.

    This error is a kind of BrokersUnreachable, because code that waits until the brokers answer
    also waits until they allow the operation.
    """

    title = "Kafka denies access"
    next_step = "Allow the operation in Kafka's access control lists."


class RegistryAway(EngineError):
    """The schema registry does not answer, or refuses the request.

    No record is rejected because of that: the run waits, and reads the same records again. If the
    registry does not answer for minutes, the run fails, and is repeated.
    """

    status = 503
    title = "The schema registry is away"
    next_step = (
        "Check that the registry runs, is reachable and accepts the credentials in "
        "SLUICE_REGISTRY or in Airflow's connection. A run waits up to 5 minutes and then "
        "fails; Airflow repeats it."
    )

    @classmethod
    def of(cls, address: str, reason: str) -> Self:
        """Return the error for a registry. The address must not contain credentials."""
        return cls(f"The schema registry at {address} does not answer: {sentence(reason)}")


class BufferFull(EngineError):
    """The buffer of a suppress step with `when_full="shut_down"` is full."""

    title = "A buffer is full"
    is_lasting = True
    next_step = "Raise the step's limit or set when_full='emit_early', then run again."


class Overdue(EngineError):
    """The newest snapshot of a pipeline is older than the pipeline's deadline allows."""

    title = "The data are too old"
    next_step = (
        "Look at the DAG in Airflow: it may be paused, or its runs may fail, wait or take too long."
    )


class NothingToReplay(EngineError):
    """No record was read in the part of the topics that a replay should read again."""

    status = 422
    title = "Nothing to replay"
    is_lasting = True


class BatchDiffers(EngineError):
    """The output of a batch that is repeated after a crash differs from the first output."""

    status = 409
    title = "The batch has changed"
    is_lasting = True

    @classmethod
    def of(cls, pipeline: str, batch: int, differences: Iterable[str]) -> Self:
        """Return the error for a batch whose first and repeated results have these differences."""
        return cls(
            f"Batch {batch} of {pipeline} was written, and then its driver ended. The repeated "
            f"batch has other results: {'; '.join(differences)}. Possible causes: changed records "
            "(for example by compaction), a changed pipeline, or changed columns of a table. The "
            "first results stay in the output, and the batch is not published.",
            next_step=(
                f"Undo the change, and run again: sluice run {pipeline}. Or compute the state "
                f"again from the topics: sluice rebuild {pipeline}. This does not write the "
                "same output again. If records of earlier batches are gone, too, add --from-topics."
            ),
        )


class OutputError(EngineError):
    """A topic that a pipeline writes was deleted, or has lost records."""

    status = 409
    title = "An output has changed"
    is_lasting = True


class LeaseError(EngineError):
    """Another driver holds the lease or has taken it over.

    Only one driver at a time can write a pipeline's state.
    """

    status = 409
    title = "Another driver runs the pipeline"


class PausedPipeline(SluiceError):
    """A pipeline is paused on purpose, so it does not run."""

    status = 409
    title = "The pipeline is paused"


class StateError(SluiceError):
    """A shard or the ledger cannot be read or written."""

    status = 503
    title = "State unavailable"
    next_step = (
        "Try again. If the error persists, check that the ledger and the workers' shards are "
        "reachable."
    )


class ServerHangs(StateError):
    """A state server accepts connections and does not answer requests."""

    title = "A state server hangs"
    next_step = (
        "End the state server's process on its host and start the server again, or promote the "
        "server's standbys: sluice standby promote."
    )


class WentBack(StateError):
    """The ledger has lost its newest commits, for example in a fail-over to a lagging replica."""

    status = 409
    title = "The ledger went back"

    @classmethod
    def of(cls, pipeline: str, published: str, newest: str | None) -> Self:
        """Return the error for a ledger that has lost the snapshot `published`.

        `newest` is the newest snapshot that the ledger has.
        """
        end = "has no snapshot" if newest is None else f"ends at snapshot {newest}"
        return cls(
            f"The ledger {end} of {pipeline}, but {published} was published. The ledger has lost "
            "its newest commits, for example in a fail-over to a replica that lagged, or was "
            "restored from a backup.",
            next_step=recovery_advice(pipeline),
        )


def recovery_advice(pipeline: str) -> str:
    """Return the next step for a pipeline whose ledger is older than its output or its shards."""
    command = f"sluice recover {pipeline}"
    return f"See what can be recovered: {command} --dry-run. Then recover it: {command}."


class DamagedState(StateError):
    """Published state is missing or altered.

    `workers` maps the number of each damaged worker to its shard's location without a password.
    `workers` is empty if a shard was opened directly, without a query or a run.
    """

    title = "Damaged state"
    next_step = "Restore the shard, or rebuild the state from the topics: sluice rebuild NAME."

    def __init__(
        self,
        detail: str,
        *,
        next_step: str = "",
        extensions: Mapping[str, Any] | None = None,
        workers: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(detail, next_step=next_step, extensions=extensions)
        self.workers = dict(workers)


class QueryError(SluiceError):
    """A query is invalid or cannot be answered."""

    status = 400
    title = "Invalid query"


class NotFound(QueryError):
    """The store, key, snapshot or worker does not exist, or the user may not see it."""

    status = 404
    title = "Not found"


class NotReady(QueryError):
    """The pipeline has not published a snapshot yet."""

    status = 503
    title = "Nothing published yet"
    next_step = "Wait for the pipeline's first run, or trigger its DAG."


class Gone(NotFound):
    """The snapshot was published but is no longer kept."""

    status = 410
    title = "No longer kept"


class NotReached(QueryError):
    """The state has not reached the snapshot or the position that the query requires."""

    status = 412
    title = "Not reached yet"
    next_step = (
        "Try again after the pipeline's next run, or leave out `min_snapshot` and `min_position`."
    )


class Incomplete(StateError):
    """The query requires a complete answer, but a worker is unavailable."""

    title = "Incomplete"
    next_step = "Try again. A run of the pipeline checks its shards, and restores the damaged ones."


class TooSlow(QueryError):
    """The query exceeded its time limit."""

    status = 503
    title = "Query timed out"
    next_step = "Query fewer entries at once: a range of keys or times, or page by page."


class Busy(QueryError):
    """The maximum number of queries is already running."""

    status = 429
    title = "Too many queries"
    next_step = "Try again in a moment."


class Refused(SluiceError):
    """A request or command is not allowed, or would overwrite what another command has changed."""

    status = 403
    title = "Refused"


class PermissionUnknown(SluiceError):
    """Airflow's auth manager has failed, so the permissions of a user are unknown."""

    status = 503
    title = "Permissions unknown"
    next_step = "Try again. If it fails again, see the log of Airflow's API server for the cause."


class Unreachable(StateError):
    """A state server does not answer, so the condition of its shards is unknown."""

    title = "State server unreachable"
    next_step = "Check that the state server runs and is reachable, then try again."


def error_text(error: BaseException) -> str:
    """Return the text of any error, with ? for characters that UTF-8 cannot encode.

    Never raises, even if `__str__` does.
    """
    try:
        return str(error).encode(errors="replace").decode()
    except Exception:
        return "(its __str__ fails)"


def sentence(message: object) -> str:
    """Return the message of another program, with a full stop unless it ends like a sentence."""
    text = str(message).strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def missing_extra(error: ImportError) -> SettingsError:
    """Return the error for a package of the extra `registry` that is not installed."""
    return SettingsError(
        f"The package {error.name} is missing, which schema registries need.",
        next_step="Run pip install 'sluice-streams[registry]'.",
    )
