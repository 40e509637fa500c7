"""What went wrong and has not gone well since: a job's last run, or the import of a pipeline's file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal, Self

import msgspec
from sqlalchemy import Engine, delete, insert, select

from sluice.errors import SluiceError
from sluice.state.database import first_line, speaking_to, writing
from sluice.state.ledger.tables import FAILURES, is_of

Kind = Literal["run", "file"]

_LENGTH = 1_000


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure. It is kept until the job's next run succeeds, or the file can be loaded."""

    pipeline: str
    job: str = ""
    """Empty if the run failed before its first job, and for a file."""
    kind: Kind = "run"
    run: str = ""
    """Of Airflow; empty for a run that was started by hand."""
    at: datetime
    title: str
    detail: str
    """The first line of what was wrong; no secrets."""

    @classmethod
    def of(
        cls, error: BaseException, pipeline: str, job: str = "", *, run: str = "", kind: Kind = "run",
        secrets: Iterable[str] = (),
    ) -> Self:  # fmt: skip
        """The failure that an error is, now; `secrets` are left out of its text."""
        if isinstance(error, SluiceError):
            title, detail = error.title, first_line(error.detail)
        else:
            title, detail = "The job stopped", f"{type(error).__name__}: {first_line(error)}"
        for secret in secrets:
            detail = detail.replace(secret, "***")
        detail = detail.replace("\0", "�")[:_LENGTH]
        return cls(pipeline=pipeline, job=job, kind=kind, run=run, at=datetime.now(UTC), title=title, detail=detail)


class Failures:
    """The ledger's failures. Every method raises StateError when the database cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> list[Failure]:
        """All that have not gone well since, sorted by pipeline and job."""
        with speaking_to("Reading the failures"), self._engine.connect() as connection:
            rows = connection.execute(select(FAILURES).order_by(FAILURES.c.pipeline, FAILURES.c.job)).mappings()
            return [Failure(**(dict(row) | {"at": datetime.fromisoformat(row["at"])})) for row in rows]

    def add(self, failure: Failure) -> None:
        """Note a job's failure in the place of an earlier one."""
        same = is_of(FAILURES, failure.pipeline, failure.job)
        with speaking_to("Noting the failure"), writing(self._engine) as connection:
            connection.execute(delete(FAILURES).where(same, FAILURES.c.kind == failure.kind))
            connection.execute(insert(FAILURES), msgspec.to_builtins(failure))

    def clear(self, pipeline: str, job: str) -> None:
        """Forget a job's failures: a run of it has succeeded."""
        mine = FAILURES.c.pipeline == pipeline, FAILURES.c.job.in_((job, "")), FAILURES.c.kind == "run"
        if not any(one.pipeline == pipeline for one in self.all()):
            return
        with speaking_to("Clearing the failure"), writing(self._engine) as connection:
            connection.execute(delete(FAILURES).where(*mine))

    def set_files(self, broken: Iterable[Failure]) -> None:
        """Note which files cannot be loaded: these, and no others. The time of those that were known stays."""
        found = {one.pipeline: one for one in broken}
        known = {one.pipeline: one for one in self.all() if one.kind == "file"}
        gone = [name for name, one in known.items() if name not in found or found[name].detail != one.detail]
        new = [one for name, one in found.items() if name not in known or name in gone]
        if not (gone or new):
            return
        with speaking_to("Noting broken files"), writing(self._engine) as connection:
            connection.execute(delete(FAILURES).where(FAILURES.c.kind == "file", FAILURES.c.pipeline.in_(gone)))
            for one in new:
                connection.execute(insert(FAILURES), msgspec.to_builtins(one))
