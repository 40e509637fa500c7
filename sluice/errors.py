"""Every error Sluice raises on purpose: one tree, each with an HTTP status and the next step to take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar


class SluiceError(Exception):
    """The root. `detail` says what is wrong and where; `next_step` says what the reader can do about it."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Sluice error"
    next_step: str = ""
    extensions: Mapping[str, Any] = MappingProxyType({})
    """Further members of the problem document that tells a client of the error."""

    def __init__(self, detail: str, *, next_step: str = "", extensions: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.next_step = next_step or type(self).next_step
        self.extensions = type(self).extensions if extensions is None else extensions

    def __str__(self) -> str:
        return f"{self.detail} {self.next_step}".strip()


class SettingsError(SluiceError):
    """A setting is missing or cannot be read as what it must be."""

    title = "Invalid setting"


class PreflightError(SluiceError):
    """The machine lacks something that is needed before anything starts: Java, a free port, memory, a jar."""

    title = "This machine is not ready"


class TopologyError(SluiceError):
    """A pipeline was built wrongly: an unknown field, a name used twice, a window without event time, bad SQL."""

    status = 422
    title = "Invalid topology"


class EngineError(SluiceError):
    """A job could not run, or had to stop, because of something outside of the records themselves."""

    title = "The job stopped"


class BrokersUnreachable(EngineError):
    """No Kafka broker answers at the address that is configured."""

    status = 503
    title = "Kafka does not answer"
    next_step = "See that a broker runs there and can be reached. SLUICE_KAFKA, or Airflow's connection, says where."


class BufferFull(EngineError):
    """More updates wait in a suppress step than its author allows, who wants the run to end then."""

    title = "A buffer is full"
    next_step = "Allow more in the step's buffer, or let it emit early when it is full; then run again."


class LeaseError(EngineError):
    """Another driver works on the job, or has taken it over: there is one writer at a time."""

    status = 409
    title = "Another driver has the job"


class StateError(SluiceError):
    """A shard or the ledger could not be read or written."""

    status = 503
    title = "State unavailable"
    next_step = "Try again; if it lasts, see whether the ledger and the workers' shards can be reached."


class DamagedState(StateError):
    """State that was published is missing or altered. `workers`: number → place of each worker it was found at.

    A place never holds a password. `workers` is empty where the error comes from a shard that is opened by itself.
    """

    title = "Damaged state"
    next_step = "Restore the shard, or build the state again from the topics: sluice rebuild NAME."

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
    """A query cannot be answered as asked."""

    status = 400
    title = "Invalid query"


class NotFound(QueryError):
    """There is no such store, key, snapshot or worker, or the reader may not know of it."""

    status = 404
    title = "Not found"


class NotReady(QueryError):
    """The pipeline has not published a snapshot yet."""

    status = 503
    title = "Nothing published yet"
    next_step = "Wait for the pipeline's first run, or trigger its DAG."


class Gone(NotFound):
    """The snapshot was published once and is no longer kept."""

    status = 410
    title = "No longer kept"


class NotReached(QueryError):
    """The state has not come as far as the query demands."""

    status = 412
    title = "Not reached yet"
    next_step = "Ask again after the pipeline's next run, or leave the bound out."


class Incomplete(StateError):
    """The query demands a complete answer, and a worker is unavailable."""

    title = "Incomplete"
    next_step = "Leave require=complete out to get what the other workers have, or try again."


class TooSlow(QueryError):
    """The query took longer than a query may."""

    status = 503
    title = "Took too long"
    next_step = "Ask for less at once: a range of keys or of times, or page by page."


class Busy(QueryError):
    """As many queries as may run are running."""

    status = 429
    title = "Too many queries"
    next_step = "Try again in a moment."


class Refused(SluiceError):
    """A state server was asked for, or asks for, what is not its own."""

    status = 403
    title = "Refused"


class Unreachable(StateError):
    """A state server does not answer: nobody knows how its shards are."""

    title = "State server unreachable"
    next_step = "See that it runs and can be reached, then try again."
