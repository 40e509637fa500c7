"""Unresolved failures: of a pipeline's last run, of loading a pipeline's file, or because its data are too old."""

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

Kind = Literal["run", "file", "overdue"]

_LENGTH = 1_000


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure, kept until a run of the pipeline has read all records, or the file can be loaded."""

    pipeline: str
    kind: Kind = "run"
    run: str = ""
    """The Airflow run; empty for a run that was started manually."""
    at: datetime
    title: str
    detail: str
    """The first line of the error, without secrets."""

    @classmethod
    def of(
        cls, error: BaseException, pipeline: str, *, run: str = "", kind: Kind = "run", secrets: Iterable[str] = ()
    ) -> Self:
        """Describe `error` as a failure at the current time, with `secrets` masked."""
        if isinstance(error, SluiceError):
            title, detail = error.title, first_line(error.detail)
        else:
            title, detail = "The run stopped", f"{type(error).__name__}: {first_line(error)}"
        for secret in secrets:
            detail = detail.replace(secret, "***")
        # Databases store neither NUL nor surrogates, which a file's name or an author's error may have.
        detail = detail.replace("\0", "�").encode(errors="replace").decode()[:_LENGTH]
        return cls(pipeline=pipeline, kind=kind, run=run, at=datetime.now(UTC), title=title, detail=detail)


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
        """Add a failure and return True, unless there is one of the same pipeline and kind already."""
        with database_errors("Writing the failure"), transaction(self._engine) as connection:
            if connection.execute(select(FAILURES).where(*_same(failure))).first() is not None:
                return False
            connection.execute(insert(FAILURES), msgspec.to_builtins(failure))
            return True

    def clear(self, pipeline: str) -> None:
        """Remove the failures of a pipeline's runs, and of their deadline, after a run has read all records."""
        if not any(failure.pipeline == pipeline for failure in self.all()):
            return
        with database_errors("Clearing the failure"), transaction(self._engine) as connection:
            connection.execute(delete(FAILURES).where(FAILURES.c.pipeline == pipeline, FAILURES.c.kind != "file"))

    def set_files(self, broken: Iterable[Failure]) -> None:
        """Replace the failures of all files by `broken`. An unchanged failure keeps its time."""
        now = {failure.pipeline: failure for failure in broken}
        before = {failure.pipeline: failure for failure in self.all() if failure.kind == "file"}
        gone = [name for name, failure in before.items() if name not in now or now[name].detail != failure.detail]
        new = [failure for name, failure in now.items() if name not in before or name in gone]
        if not (gone or new):
            return  # the usual case: Airflow loads the files again and again
        with database_errors("Writing broken files"), transaction(self._engine) as connection:
            connection.execute(delete(FAILURES).where(FAILURES.c.kind == "file", FAILURES.c.pipeline.in_(gone)))
            for failure in new:
                connection.execute(insert(FAILURES), msgspec.to_builtins(failure))


def _same(failure: Failure) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return FAILURES.c.pipeline == failure.pipeline, FAILURES.c.kind == failure.kind
