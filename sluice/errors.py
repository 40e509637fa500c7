"""Every error Sluice raises on purpose: one tree, each with an HTTP status and the next step to take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar


class SluiceError(Exception):
    """The root. `detail` says what is wrong and where; `next_step` says what the reader can do about it."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Sluice error"
    next_step: str = ""
    extensions: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Further members of the problem document that tells a client of the error."""

    def __init__(self, detail: str, *, next_step: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.next_step = next_step or type(self).next_step

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


class QueryError(SluiceError):
    """A query cannot be answered as asked."""

    status = 400
    title = "Invalid query"


class NotFound(QueryError):
    """There is no such store, key, cut or worker, or the reader may not know of it."""

    status = 404
    title = "Not found"


class NotReady(QueryError):
    """The pipeline has not published a cut yet."""

    status = 503
    title = "Nothing published yet"
    next_step = "Wait for the pipeline's first run, or trigger its DAG."
