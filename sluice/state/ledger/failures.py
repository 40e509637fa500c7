"""What is wrong with pipelines now, until it is resolved: one failure of each kind for each pipeline.

| kind | what is wrong | who records it | until |
|---|---|---|---|
| run | the last run failed | the driver, or the operator that waited for it | a run has read all records |
| file | the pipeline's file cannot be loaded | whoever loads it | it can be loaded |
| overdue | the data are older than the pipeline's deadline | the alert | a run has read all records |
| input | brokers or topics are away, so the pipeline waits | the trigger | they are back |
| rejections | many of the newest batch's records were rejected | the driver | the next batch with fewer |
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal, Self

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.sql import ColumnElement

from sluice.errors import SluiceError
from sluice.state.database import database_errors, first_line, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.tables import FAILURES

Kind = Literal["run", "file", "overdue", "input", "rejections"]

FAILED_KINDS: frozenset[Kind] = frozenset({"run", "overdue"})
"""A pipeline has failed if one of these kinds is recorded. A run that has read all records clears
them."""

_LENGTH = 1_000


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong with a pipeline."""

    pipeline: str
    kind: Kind = "run"
    run: str = ""
    """The Airflow run; empty for a run that was started manually."""
    at: datetime
    """When the failure began."""
    title: str
    detail: str
    """The first line of the error, without secrets."""
    next_step: str = ""
    is_lasting: bool = False
    """Whether a run with the same records, code and settings would fail again."""

    @classmethod
    def of(
        cls,
        error: BaseException,
        pipeline: str,
        *,
        run: str = "",
        kind: Kind = "run",
        secrets: Iterable[str] = (),
    ) -> Self:
        """Describe `error` as a failure at the current time, with `secrets` masked."""
        if isinstance(error, SluiceError):
            title, detail, next_step = error.title, first_line(error.detail), error.next_step
        else:
            title, detail, next_step = (
                "The run stopped",
                f"{type(error).__name__}: {first_line(error)}",
                "",
            )
        return cls(
            pipeline=pipeline, kind=kind, run=run, at=datetime.now(UTC), title=title,
            detail=_storable(detail, secrets), next_step=_storable(next_step, secrets),
            is_lasting=isinstance(error, SluiceError) and error.is_lasting,
        )  # fmt: skip


class Failures(LedgerPart):
    """The failures of all pipelines."""

    def all(self) -> list[Failure]:
        """All failures, sorted by pipeline and kind."""
        rows = self._read(select(FAILURES).order_by(FAILURES.c.pipeline, FAILURES.c.kind))
        return [Failure(**(dict(row) | {"at": datetime.fromisoformat(row["at"])})) for row in rows]

    def add(self, failure: Failure) -> None:
        """Add a failure. It replaces an earlier failure of the same pipeline and kind."""
        with database_errors("Writing the failure"), transaction(self._engine) as connection:
            connection.execute(delete(FAILURES).where(*_same(failure)))
            connection.execute(insert(FAILURES), msgspec.to_builtins(failure))

    def add_if_new(self, failure: Failure) -> bool:
        """Add a failure and return True.

        Does nothing if the pipeline already has a failure of this kind.
        """
        with database_errors("Writing the failure"), transaction(self._engine) as connection:
            if connection.execute(select(FAILURES).where(*_same(failure))).first() is not None:
                return False
            connection.execute(insert(FAILURES), msgspec.to_builtins(failure))
            return True

    def keep(self, failure: Failure) -> None:
        """Add a failure.

        If the pipeline already has a failure of this kind, replace its text but not its time.
        """
        with database_errors("Writing the failure"), transaction(self._engine) as connection:
            since = connection.execute(select(FAILURES.c.at).where(*_same(failure))).scalar()
            connection.execute(delete(FAILURES).where(*_same(failure)))
            connection.execute(insert(FAILURES), msgspec.to_builtins(failure) | ({"at": since} if since else {}))

    def of(self, pipeline: str) -> list[Failure]:
        """The failures of a pipeline, sorted by kind."""
        return [failure for failure in self.all() if failure.pipeline == pipeline]

    def clear(self, pipeline: str, *kinds: Kind) -> None:
        """Remove a pipeline's failures of some kinds."""
        if not any(failure.kind in kinds for failure in self.of(pipeline)):
            return
        with database_errors("Clearing the failure"), transaction(self._engine) as connection:
            connection.execute(delete(FAILURES).where(FAILURES.c.pipeline == pipeline, FAILURES.c.kind.in_(kinds)))

    def set_files(self, broken: Iterable[Failure]) -> None:
        """Replace the failures of all files by `broken`. An unchanged failure keeps its time."""
        now = {failure.pipeline: failure for failure in broken}
        before = {failure.pipeline: failure for failure in self.all() if failure.kind == "file"}
        gone = [name for name, failure in before.items() if name not in now or now[name].detail != failure.detail]
        new = [failure for name, failure in now.items() if name not in before or name in gone]
        if not (gone or new):
            # This is the usual case, because Airflow loads the files again and again.
            return
        with database_errors("Writing broken files"), transaction(self._engine) as connection:
            connection.execute(delete(FAILURES).where(FAILURES.c.kind == "file", FAILURES.c.pipeline.in_(gone)))
            for failure in new:
                connection.execute(insert(FAILURES), msgspec.to_builtins(failure))


def _storable(text: str, secrets: Iterable[str]) -> str:
    """A text without secrets, in the characters and the length that databases store."""
    for secret in secrets:
        text = text.replace(secret, "***")
    # Databases store neither NUL nor surrogates, which a file's name or an author's error may have.
    return text.replace("\0", "�").encode(errors="replace").decode()[:_LENGTH]


def _same(failure: Failure) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return FAILURES.c.pipeline == failure.pipeline, FAILURES.c.kind == failure.kind
