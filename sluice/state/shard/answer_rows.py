"""The SQL of answers: the results of calls out of a pipeline, for example to a model or a database.

An answer is a fact, not a state: it belongs to no batch. So a batch that is repeated after a crash
finds the answers that were recorded before the crash. The shard forgets all other rows of the
batch. The first call out of a pipeline adds the table `answers`.

Access answers through a `Shard`, which fences off older writers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from sluice.state.shard.database_driver import Driver
from sluice.values.key_owners import owner

_IDS_AT_ONCE = 500
_COLUMNS = "step, id, key, at, batch, value, error"
_CREATE = """CREATE TABLE IF NOT EXISTS answers (
    step VARCHAR NOT NULL, id VARCHAR NOT NULL, key VARCHAR NOT NULL, at BIGINT NOT NULL,
    batch BIGINT NOT NULL, value TEXT, error VARCHAR, PRIMARY KEY (step, id))"""
_CREATE_INDEX = "CREATE INDEX IF NOT EXISTS answers_at ON answers (at, step, id)"
_READ = f"SELECT {_COLUMNS} FROM answers WHERE step = ? AND id IN ({{ids}})"
# If two attempts of a task have made the same call at the same time, the first answer stays.
_INSERT = f"INSERT INTO answers ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_PAGE = (
    f"SELECT {_COLUMNS} FROM answers WHERE (at, step, id) > (?, ?, ?) ORDER BY at, step, id LIMIT ?"
)
_BEFORE_ALL = (-1, "", "")


class RecordedAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What a call has returned for one row, or why it has failed."""

    step: str
    """The name under which the step's answers are recorded."""
    id: str
    """Identifies the row: the same row has the same id in every batch and every attempt."""
    key: str
    """The row's key; the worker that owns it keeps the answer. Empty for a row without a key."""
    at: int
    """The clock of the batch in which the call was made, epoch ms."""
    batch: int
    """The batch in which the call was made; -1 for an answer from another generation."""
    value: str | None = None
    """The result as JSON; None for null or a failure."""
    error: str | None = None
    """Why the call has failed; None if it has not."""


def by_worker(answers: Iterable[RecordedAnswer], workers: int) -> dict[int, list[RecordedAnswer]]:
    """Return worker's number → the answers for its keys, if there are `workers` workers."""
    divided: dict[int, list[RecordedAnswer]] = defaultdict(list)
    for answer in answers:
        divided[owner(answer.key, workers)].append(answer)
    return divided


def prepare(driver: Driver) -> None:
    """Create the table if it does not exist, within a transaction."""
    driver.execute(_CREATE)
    driver.execute(_CREATE_INDEX)


def read(driver: Driver, step: str, ids: Sequence[str]) -> list[RecordedAnswer]:
    """Return the recorded answers of a step with these ids."""
    answers: list[RecordedAnswer] = []
    for start in range(0, len(ids), _IDS_AT_ONCE):
        chunk = ids[start : start + _IDS_AT_ONCE]
        rows = driver.fetch(_READ.format(ids=", ".join("?" * len(chunk))), (step, *chunk))
        answers += [RecordedAnswer(*row) for row in rows]
    return answers


def write(driver: Driver, answers: Iterable[RecordedAnswer]) -> None:
    """Record answers, within a transaction. An answer that is recorded already stays as it is."""
    driver.execute_many(_INSERT, [msgspec.structs.astuple(answer) for answer in answers])


def forget(driver: Driver, step: str, before: int) -> None:
    """Remove a step's answers that were recorded before a time, epoch ms, within a transaction."""
    driver.execute("DELETE FROM answers WHERE step = ? AND at < ?", (step, before))


def forget_failures(driver: Driver, batch: int) -> None:
    """Remove the failures of a batch, within a transaction."""
    driver.execute("DELETE FROM answers WHERE batch = ? AND error IS NOT NULL", (batch,))


def forget_all(driver: Driver, before: int) -> None:
    """Remove the answers recorded before a time, epoch ms, within a transaction."""
    driver.execute("DELETE FROM answers WHERE at < ?", (before,))


def page(driver: Driver, after: tuple[int, str, str] | None, limit: int) -> list[RecordedAnswer]:
    """Return a page of all answers that come after (time, step, id), sorted."""
    rows = driver.fetch(_PAGE, (*(after or _BEFORE_ALL), limit))
    return [RecordedAnswer(*row) for row in rows]


def newest(driver: Driver) -> int | None:
    """Return the time of the newest answers; None without answers."""
    ((time,),) = driver.fetch("SELECT max(at) FROM answers", ())
    return None if time is None else int(time)
