"""The unresolved failures of pipelines, at most one of each kind for a pipeline and host.

| kind | what is wrong | who records it | until |
|---|---|---|---|
| run | the last run failed | the driver or its Airflow task | a run has read all records |
| file | the pipeline's file is gone or wrong | the program that loads it | it can be loaded |
| overdue | the data are older than the deadline | the task `alert` | a run has read all records |
| input | brokers or topics are away, so the pipeline waits | the DAG's trigger | they are back |
| slot | Airflow does not start a run | the DAG's trigger | a driver has started |
| lease | a driver waits for another driver | the waiting driver | it has the lease, or gives up |
| registry | the schema registry did not answer a run | the driver | a run has read all records |
| held | a transaction holds back records | the DAG's trigger | the transaction has ended |
| rejections | a batch has many rejected records | the driver | a batch has few of them |
| expectations | a batch breaks an expectation | the driver | a batch keeps all of them |
| host | a state server does not answer | a program that asks it | it answers |
| disk | the disk of a host is nearly full | that host | it has space |
| clock | the clock of a host is wrong | that host | it is right |
| growth | the state has grown for a week | the DAG for retention | it stops growing |
| retention | old state cannot be deleted | the DAG for retention | it has deleted it |
| budget | the runs of today cost more than the budget | the driver | the day ends |
| schemas | registry and pipeline do not match | `sluice check` | a later check finds a match |

Airflow's API server adds facts from Airflow's database to the failures `run`, `slot` and `overdue`:
see `api.airflow_causes`.

Hosts look for failures of the `OBSERVED_KINDS` again and again. Such a failure no longer counts if
no host has recorded it for `UNSEEN_SECONDS`, for example because the host is gone for good.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Self, get_args

import msgspec
from sqlalchemy import RowMapping, and_, bindparam, delete, insert, not_, select, update
from sqlalchemy.sql import ColumnElement

from sluice.answers import FailureKind
from sluice.errors import SluiceError
from sluice.settings import masked
from sluice.state.database import database_errors, first_line, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import FAILURES
from sluice.values.phrases import counted

KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
FAILED_KINDS: frozenset[FailureKind] = frozenset({"run", "overdue"})
"""A pipeline has failed if a failure of one of these kinds is recorded. A run that has read all
records clears them."""
WAITING_KINDS: frozenset[FailureKind] = frozenset({"input", "slot", "lease", "registry"})
"""A pipeline with such a failure goes on by itself once the broker, Airflow, the other driver or
the registry is ready."""
RUN_KINDS: frozenset[FailureKind] = frozenset({"run", "registry"})
"""The kinds of failures that end a run."""
OBSERVED_KINDS: frozenset[FailureKind] = frozenset({"lease", "host", "disk", "clock"})
UNSEEN_SECONDS = 900.0
SLOT_SECONDS = 40.0
"""If Airflow has not started a run after this time, the run counts as waiting for a slot."""

_LENGTH = 1_000


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure of a pipeline: what is wrong, since when, and the next step."""

    pipeline: str
    kind: FailureKind = "run"
    host: str = ""
    """The host that the failure is about, with a port if it is a server; empty for the pipeline as
    a whole."""
    run: str = ""
    """The Airflow run; empty for a run that was started manually."""
    at: datetime
    """When the failure began. Consecutive failed attempts count as one failure."""
    seen_at: datetime
    """When the failure was last seen. For a failed run, this is when its newest attempt failed."""
    title: str
    detail: str
    """The first line of the error, without secrets."""
    next_step: str = ""
    is_lasting: bool = False
    """Whether a run with the same records, code and settings would fail again."""
    attempts_left: int | None = None
    """How many attempts Airflow has left for the run; None if that is unknown."""
    marked: str = ""
    """Who has set the state of the run in Airflow by hand, and to what; empty if nobody has."""
    repeats_at: datetime | None = None
    """When the next attempt or run starts by itself; None if that is unknown."""

    @property
    def is_given_up(self) -> bool:
        """Whether Airflow does not repeat the failed run any more."""
        return self.attempts_left == 0 or bool(self.marked)

    @property
    def outlook(self) -> str:
        """Whether and when a failed run is repeated by itself; empty for other failures."""
        if self.kind != "run":
            return ""
        if not self.run:
            return "The run was started with sluice run, so Airflow does not repeat it."
        if self.is_lasting:
            return "Airflow does not repeat the run, because it would fail again in the same way."
        at = "" if self.repeats_at is None else f" at {self.repeats_at:%H:%M:%S} UTC"
        if self.attempts_left and not self.marked:
            return f"Airflow repeats the run{at}: {counted(self.attempts_left, 'attempt')} left."
        next_run = f" A new run starts{at}." if at else ""
        if self.marked:
            return f"{self.marked}, so Airflow does not repeat it.{next_run}"
        if self.attempts_left is None:
            return ""
        return f"Airflow has used up its attempts.{next_run}"

    @classmethod
    def of(
        cls,
        error: BaseException,
        pipeline: str,
        *,
        run: str = "",
        kind: FailureKind = "run",
        host: str = "",
        secrets: Iterable[str] = (),
    ) -> Self:
        """Describe `error` as a failure at the current time.

        `secrets` and the secrets of this process's settings are masked.
        """
        if isinstance(error, SluiceError):
            title, detail, next_step = error.title, first_line(error.detail), error.next_step
        else:
            title, detail, next_step = (
                "The run stopped",
                f"{type(error).__name__}: {first_line(error)}",
                "",
            )
        now = datetime.now(UTC)
        return cls(
            pipeline=pipeline,
            kind=kind,
            host=host,
            run=run,
            at=now,
            seen_at=now,
            title=title,
            detail=_storable(detail, secrets),
            next_step=_storable(next_step, secrets),
            is_lasting=isinstance(error, SluiceError) and error.is_lasting,
        )


class Failures(LedgerPart):
    """The failures of all pipelines."""

    def all(self, now: datetime | None = None) -> list[Failure]:
        """Return all failures, sorted by pipeline, kind and host."""
        now = now or datetime.now(UTC)
        expired = now - timedelta(seconds=UNSEEN_SECONDS)
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        times = {"expired": _as_text(expired), "today": _as_text(today)}
        rows = self._read(_UNEXPIRED, times)
        return [_failure(row) for row in rows]

    def add_if_new(self, failure: Failure) -> bool:
        """Add a failure, and return True.

        If the pipeline already has a failure of this kind and host, return False and change
        nothing.
        """
        with database_errors("Writing the failure"), transaction(self._engine) as connection:
            if connection.execute(select(FAILURES).where(*_same(failure))).first() is not None:
                return False
            connection.execute(insert(FAILURES), _row(failure))
            return True

    def keep(self, *failures: Failure) -> None:
        """Add failures.

        A failure replaces an earlier failure of the same pipeline, kind and host, but keeps the
        time at which the earlier failure began.
        """
        with database_errors("Writing the failure"), transaction(self._engine) as connection:
            for failure in failures:
                since = connection.execute(select(FAILURES.c.at).where(*_same(failure))).scalar()
                connection.execute(delete(FAILURES).where(*_same(failure)))
                row = _row(failure)
                if since:
                    row["at"] = since
                connection.execute(insert(FAILURES), row)

    def change(self, failure: Failure, **values: Any) -> None:
        """Change some fields of a failure.

        Other fields, which other processes change, stay as they are.

        Nothing changes if the failure was recorded anew after it was read.
        """
        row = _row(msgspec.structs.replace(failure, **values))
        before = _row(failure)
        changed: dict[str, Any] = {}
        for name in values:
            if row[name] != before[name]:
                changed[name] = row[name]
        if changed:
            with database_errors("Changing the failure"), transaction(self._engine) as connection:
                is_unchanged = FAILURES.c.seen_at == before["seen_at"]
                connection.execute(
                    update(FAILURES).where(*_same(failure), is_unchanged).values(**changed)
                )

    def of(self, pipeline: str) -> list[Failure]:
        """Return the failures of a pipeline, sorted by kind and host."""
        return [failure for failure in self.all() if failure.pipeline == pipeline]

    def clear(self, pipeline: str, *kinds: FailureKind, host: str | None = None) -> None:
        """Remove a pipeline's failures of some kinds, of one host or of all hosts."""
        failures: list[Failure] = []
        for failure in self.of(pipeline):
            if failure.kind in kinds and host in (None, failure.host):
                failures.append(failure)
        if not failures:
            return
        with database_errors("Clearing the failure"), transaction(self._engine) as connection:
            for failure in failures:
                connection.execute(delete(FAILURES).where(*_same(failure)))

    def set_files(self, broken: Iterable[Failure]) -> None:
        """Replace the failures of all files by `broken`. An unchanged failure keeps its time."""
        now = {failure.pipeline: failure for failure in broken}
        unchanged: set[str] = set()
        gone: list[str] = []
        for failure in self.all():
            if failure.kind != "file":
                continue
            name = failure.pipeline
            if name in now and now[name].detail == failure.detail:
                unchanged.add(name)
            else:
                gone.append(name)
        new = [now[name] for name in now if name not in unchanged or name in gone]
        if not (gone or new):
            # This is the usual case: Airflow loads the files again and again, and few have changed.
            return
        with database_errors("Writing broken files"), transaction(self._engine) as connection:
            connection.execute(
                delete(FAILURES).where(FAILURES.c.kind == "file", FAILURES.c.pipeline.in_(gone))
            )
            for failure in new:
                connection.execute(insert(FAILURES), _row(failure))


def _storable(text: str, secrets: Iterable[str]) -> str:
    """Return a text without secrets, in the characters and the length that databases store."""
    # Databases store neither NUL nor surrogates, which a file's name or an author's error may have.
    return masked(text, secrets).replace("\0", "�").encode(errors="replace").decode()[:_LENGTH]


def _failure(row: RowMapping) -> Failure:
    times: dict[str, datetime] = {}
    for name in ("at", "seen_at", "repeats_at"):
        if row[name]:
            times[name] = datetime.fromisoformat(row[name])
    return Failure(**(dict(row) | times))


def _row(failure: Failure) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(failure)
    return row | {"seen_at": _as_text(failure.seen_at)}


def _as_text(moment: datetime) -> str:
    """Return a time as text.

    All times get equally long texts, so every collation sorts them by time.
    """
    return moment.isoformat(timespec="microseconds")


_UNEXPIRED = (
    select(*(FAILURES.c[name] for name in Failure.__struct_fields__))
    .where(
        not_(and_(FAILURES.c.kind.in_(OBSERVED_KINDS), FAILURES.c.seen_at < bindparam("expired"))),
        # A budget is for one day, so earlier days' failures no longer count.
        not_(and_(FAILURES.c.kind == "budget", FAILURES.c.seen_at < bindparam("today"))),
    )
    .order_by(FAILURES.c.pipeline, FAILURES.c.kind, FAILURES.c.host)
)


def _same(failure: Failure) -> tuple[ColumnElement[bool], ...]:
    c = FAILURES.c
    return c.pipeline == failure.pipeline, c.kind == failure.kind, c.host == failure.host
