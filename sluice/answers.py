"""The types of REST responses, which the server encodes and the client decodes, and shared limits.

A type is named after the object that it shows: `Snapshot` shows a `state.model.Snapshot`.
`api.http.replies` encodes responses as JSON. Commands print them as a table, JSON or CSV:
`commands.console` has a function for each format.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal

import msgspec

MAX_KEYS = 1_000
"""Maximum number of keys in a request."""
MAX_PAGE = 1_000
"""Maximum number of entries on a page."""


class Snapshot(msgspec.Struct, frozen=True):
    """The snapshot that an answer was read from.

    `positions` are the next offsets: topic → partition → offset.
    """

    id: str
    published_at: datetime
    age_seconds: float
    positions: dict[str, dict[str, int]]


class WorkerStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a worker answered the query."""

    number: int
    status: Literal["ok", "unavailable"]
    reason: str = ""
    """Why the worker did not answer."""
    standby: bool = False
    """Whether the worker's standby answered in its place."""


def unavailable(workers: Iterable[WorkerStatus]) -> list[str]:
    """Return the workers that did not answer, each with the reason."""
    reasons: list[str] = []
    for worker in workers:
        if worker.status != "ok":
            reasons.append(f"worker {worker.number}: {worker.reason}")
    return reasons


def is_partial(workers: Iterable[WorkerStatus]) -> bool:
    """Return whether data may be missing because a worker did not answer."""
    return any(worker.status != "ok" for worker in workers)


class Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """A header of a record. Names may occur several times."""

    name: str
    value: str | None
    """The value as text, with � in place of bytes that are not UTF-8."""
    base64: str | None = None
    """The value in base64, if it is not UTF-8. Absent in dead letters."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key and its value. In a windowed store, an entry also has the window's `start` and `end`.

    In a store that keeps headers, an entry has the `headers` of the record that has last changed
    it. If this store belongs to a processor, `headers_by_name` has the headers of each value of the
    key.
    """

    key: str
    value: Any
    start: datetime | None = None
    end: datetime | None = None
    headers: list[Header] = []
    headers_by_name: dict[str, list[Header]] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields of every answer about a store."""

    pipeline: str
    store: str
    snapshot: Snapshot
    workers: tuple[WorkerStatus, ...]
    partial: bool
    """Whether data may be missing because a worker is unavailable."""
    standby: bool = False
    """Whether a standby answered in place of a worker. The standby's data come from the same
    snapshot."""


class Entries(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """Entries of a store, one page at a time."""

    entries: list[Entry]
    cursor: str | None = None
    """Cursor of the next page; absent on the last page."""

    @property
    def value(self) -> Any:
        """The value of the first entry. Use this property after a query of a single key."""
        return self.entries[0].value


class Count(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """The number of entries in a store or range."""

    count: int


class Group(msgspec.Struct, frozen=True):
    """The aggregates of one group.

    `sum`, `min` and `max` are None if the field is missing in all entries of the group.
    """

    group: Any
    entries: int
    sum: Decimal | None
    min: Decimal | None
    max: Decimal | None


class Groups(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """Aggregates of a store's entries, by group."""

    groups: list[Group]


class ChangedKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key whose value was changed or deleted; in a windowed store also the window's bounds."""

    key: str
    start: datetime | None = None
    end: datetime | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A new snapshot, and the keys that changed since the previous snapshot."""

    event: Literal["snapshot", "reset"] = "snapshot"
    """`reset` if the changed keys are unknown: the client must read everything again."""
    pipeline: str
    store: str
    snapshot: Snapshot
    changed: list[ChangedKey]
    more: bool
    """Whether more keys changed than `changed` lists."""
    workers: tuple[WorkerStatus, ...]


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """A store, its newest snapshot and the status of its workers."""

    pipeline: str
    store: str
    kind: Literal["key-value", "window", "global"]
    key: str
    """The expression for the key."""
    value: str
    """The type of the values."""
    windows: str | None
    """The definition of the windows; None for a store without windows."""
    window_ms: int | None
    """The size of the windows; None if windows differ in size, as sessions and days of a time zone
    do."""
    grace_ms: int | None
    retention_ms: int | None
    workers: tuple[WorkerStatus, ...]
    snapshot: Snapshot | None
    """The newest snapshot; None if nothing has been published."""
    partial: bool
    entries: int | None
    """The number of entries on the workers that answered; None unless the request asked to count
    them."""
    topology: str
    """URL path of the pipeline's topology."""


class Health(StrEnum):
    """The health of a pipeline."""

    OK = "ok"
    """The last run succeeded."""
    NOT_STARTED = "not_started"
    """The pipeline has never run."""
    PAUSED = "paused"
    """Somebody has paused the pipeline, and said why: see `pause`."""
    RETIRED = "retired"
    """The pipeline is no longer run: see `sluice retire`."""
    DEGRADED = "degraded"
    """The pipeline runs, but something is wrong: many rejected records, a silent host, a full disk,
    a wrong clock."""
    HELD = "held"
    """An open transaction of a producer has held back records for more than a minute."""
    WAITING = "waiting"
    """The pipeline is waiting for brokers, topics, a slot in Airflow or a lease, and continues by
    itself."""
    FAILED = "failed"
    """The last run failed."""
    BROKEN = "broken"
    """The pipeline's file cannot be loaded, or is gone, so no run can start."""


FailureKind = Literal[
    "run",
    "file",
    "overdue",
    "input",
    "slot",
    "lease",
    "registry",
    "held",
    "rejections",
    "expectations",
    "host",
    "disk",
    "clock",
    "growth",
    "retention",
    "budget",
    "schemas",
]


class Failure(msgspec.Struct, frozen=True):
    """What is wrong with a pipeline.

    | kind | what is wrong |
    | --- | --- |
    | `run` | the last run failed, or somebody has marked it as failed |
    | `file` | the pipeline's file cannot be loaded |
    | `overdue` | the data are older than the deadline |
    | `input` | brokers or topics are not available |
    | `slot` | Airflow does not start a run: its pool has no free slot |
    | `lease` | a driver waits for another driver |
    | `held` | an open transaction of a producer holds back records |
    | `rejections` | many records of the newest batch were rejected |
    | `expectations` | records of the newest batch were not as the pipeline expects |
    | `host` | a state server does not answer |
    | `disk` | a disk is nearly full |
    | `clock` | the clock of a host is wrong |
    | `growth` | the state grows without a bound |
    | `retention` | old snapshots and rows cannot be deleted |
    | `budget` | the runs of today cost more than the budget |
    | `schemas` | the schema registry and the pipeline did not match when they were last compared |
    """

    kind: FailureKind
    host: str
    """The host that the failure is about; an empty text if the failure is not about one host."""
    run: str
    """The run in Airflow; an empty text for a run that was started by hand."""
    at: datetime
    """When the failure began. Consecutive failed attempts count as one failure."""
    age_seconds: float
    title: str
    detail: str
    next_step: str
    seen_at: datetime
    """When the failure was last seen. For a failed run: when its newest attempt failed."""
    outlook: str
    """Whether and when a failed run is repeated automatically; an empty text for other failures."""
    repeats_at: datetime | None
    """When the next attempt or run starts by itself; None if that is unknown."""
    remedy: Literal["", "change"] = ""
    """The action of a run that resolves the failure; an empty text if no action does."""


class Pause(msgspec.Struct, frozen=True):
    """Why a pipeline is paused, and who paused it."""

    reason: str
    by: str
    """The user who paused the pipeline; an empty text if the user is unknown."""
    at: datetime


class Resumed(msgspec.Struct, frozen=True):
    """What a request to resume a pipeline has done."""

    was_paused: bool
    """Whether the pipeline was paused before the request."""


class PipelineStatus(msgspec.Struct, frozen=True):
    """A pipeline with its health and its current generation."""

    pipeline: str
    status: Health
    failures: list[Failure]
    generation: int | None
    """The number of the current generation. None if the pipeline has never run; it then has no
    topics and stores."""
    topics: tuple[str, ...]
    """The topics that the pipeline reads. Patterns of topics begin with `^`, and come before the
    topics that they match."""
    stores: list[str]
    workers: int
    """The number of workers."""
    snapshot: Snapshot | None
    """The newest snapshot; None if nothing has been published."""
    pause: Pause | None
    """Why the pipeline does not run; None unless somebody has paused it."""


class CountedSnapshot(msgspec.Struct, frozen=True):
    """A pipeline's snapshot, with counts of its batch's records, such as read, applied and late."""

    snapshot: Snapshot
    run: str
    """The run that published the snapshot."""
    counts: dict[str, int]


class Standby(msgspec.Struct, frozen=True):
    """The state server that keeps a standby copy of a worker's shard."""

    host: str
    port: int
    snapshot: str | None
    """The newest snapshot that the copy holds; None if there is no complete copy of the current
    generation."""


class Worker(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker of a pipeline, with its address, stores and status."""

    number: int
    host: str
    port: int
    """0 if the worker has no state server; readers then open its shard directly."""
    stores: list[str]
    status: Literal["ok", "degraded", "unavailable"]
    """`degraded` if only the worker's standby answers."""
    reason: str = ""
    bytes: int | None = None
    """The size of the worker's shard, if this server opens the shard itself and the shard is a
    SQLite file."""
    standby: Standby | None = None
    """Absent if the worker has no standby."""


class PipelineHealth(StrEnum):
    """The state of a pipeline in the overview. The values are listed from the worst to the best."""

    BROKEN = "broken"
    """The pipeline's file cannot be loaded, or is gone, so no run can start."""
    FAILED = "failed"
    """The last run failed."""
    WAITING = "waiting"
    """The pipeline is waiting for brokers, topics, a slot in Airflow or a lease, and continues by
    itself."""
    RUNNING = "running"
    HELD = "held"
    """An open transaction of a producer has held back records for more than a minute."""
    DEGRADED = "degraded"
    """The pipeline runs, but something is wrong: many rejected records, a silent host, a full disk,
    a wrong clock."""
    BEHIND = "behind"
    """There are unread records, but no run."""
    IDLE = "idle"
    NOT_STARTED = "not_started"
    """The pipeline has never run."""
    PAUSED = "paused"
    """Somebody has paused the pipeline, and said why: see `pause`."""
    RETIRED = "retired"
    """The pipeline is no longer run: see `sluice retire`."""


class Attempt(msgspec.Struct, frozen=True):
    """One of Airflow's attempts to run the task of a run."""

    number: int
    state: str
    """The state in Airflow, such as `running`, `success` or `failed`."""
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    log: str
    """Path of the attempt's log in Airflow."""


class Run(msgspec.Struct, frozen=True):
    """A run of a pipeline's DAG in Airflow."""

    run: str
    state: Literal["queued", "running", "success", "failed"]
    started_at: datetime | None
    ended_at: datetime | None
    log: str
    """Path in Airflow of the log of the run's failed task, or of its last task."""
    action: str
    """The action of the run: `run`, `replay`, `promote`, `drop`, `roll_back` or `change`."""
    queued_at: datetime | None = None
    """When the run was requested."""
    attempts: list[Attempt] = []
    """The attempts of the run's task, oldest first; empty in the overview."""
    started_by: str = ""
    """The user who started the run; an empty text if it was no user, or if the user is unknown."""


class PartitionLag(msgspec.Struct, frozen=True):
    """The number of records of a partition that a pipeline has not read."""

    topic: str
    partition: int
    position: int | None
    """The next offset to read; None if no batch has been published."""
    end: int
    unread: int
    held: int
    """The number of newest records that an open transaction of a producer holds back."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline in the overview."""

    pipeline: str
    health: PipelineHealth
    paused: bool
    """Whether the pipeline's DAG is paused in Airflow. If it is, no run starts."""
    pause: Pause | None
    """Why the pipeline is paused in Sluice; None unless somebody has paused it. A paused pipeline
    processes nothing, even if Airflow starts a run."""
    failures: list[Failure]
    unread: int | None
    """Unread records of all partitions; None if Kafka does not answer, or if a topic is missing."""
    lag: list[PartitionLag]
    lag_error: str
    """Why the lag is unknown; an empty text if it is known. For a pipeline that has never run: what
    it waits for, as far as that is known."""
    held_since: datetime | None
    """When the server first saw that an open transaction holds back records.

    None if there is no such transaction, or if it was first seen less than a minute ago.
    """
    snapshot: Snapshot | None
    """The newest snapshot; None if nothing has been published."""
    last_run: Run | None
    """The newest run in Airflow. None if the pipeline has never run, and always on a state
    server."""
    dead_letters: dict[str, int]
    """Reason → number of dead letters in the last 24 hours."""
    may_edit: bool
    """Whether you may start runs of the pipeline and re-drive its dead letters."""
    newest_event: datetime | None
    """The largest event time in the newest snapshot; None if no record had an event time."""
    records: list[int]
    """The number of records in each of the newest 30 batches, oldest first."""
    tags: list[str]
    """The tags of the pipeline's DAG in Airflow, apart from Sluice's own tags."""
    owner: str
    """The owner of the pipeline's DAG in Airflow; empty if there is no DAG."""


class OverviewSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How many pipelines there are."""

    pipelines: int
    matching: int
    """The number of pipelines that match the request."""
    failing: int
    """The number of pipelines with failures, whatever their health."""
    health: dict[str, int]
    owners: dict[str, int]
    """Owner of the DAG → number of pipelines; an empty text for pipelines without an owner."""
    tags: dict[str, int]
    first: list[Overview]
    """The matching pipelines with the worst health."""


class BatchHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A published batch, according to its audit."""

    snapshot: str
    published_at: datetime
    seconds: float | None
    """The time from the batch's start until its snapshot was published; None if a rebuild repeated
    the batch."""
    phases: dict[str, float]
    """Phase → seconds: `start` (planning by Spark), `state` (processing records and writing
    shards), `audit` (checking that the counts balance), `output` (writing tables and topics)."""
    records: int
    records_per_second: float | None
    applied: int
    filtered: int
    late: dict[str, int]
    """Store → number of records that were too late for it, counted once per window."""
    dropped: dict[str, int]
    """Reason → number of unusable records that were dropped."""
    failed: dict[str, int]
    """Step → number of records for which the step failed."""
    passed_over: dict[str, int] = {}
    """`REASON/STEP` → number of records that a step did not use and that are not counted above, for
    reasons such as `null_key`, `duplicate` or `missing`."""
    dead_letters: dict[str, int]
    """Reason → number of dead letters."""
    read: dict[str, int]
    """Topic → number of records read."""
    written: dict[str, int]
    """Topic → number of records written."""
    received: dict[str, int] = {}
    """`STEP/INPUT` → number of rows that a step got from its input with this index. Only inputs
    whose rows can be counted exactly are listed."""
    results: dict[str, int] = {}
    """Step → number of rows that it passed on, for steps that keep each key's records in order."""
    rows: int
    """The number of state rows written."""
    run: str
    log: str
    """Path in Airflow of the task's log; an empty text for a run without Airflow."""
    wrong: list[str]
    """The reasons why the audit does not balance; an empty list if it balances."""
    newest_event: datetime | None
    """The largest event time up to this batch; None if no record had an event time."""


class HistoryColumn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One column of the history: the batches and runs that ended in one part of the period."""

    column: int
    """The number of the part, from 0."""
    batches: int
    records: int
    most_records: int
    """The number of records of the largest batch. All of them were unread when the batch began."""
    rows: int
    """The number of state rows written."""
    seconds: float | None = None
    """The mean duration of the batches whose duration is known."""
    phases: dict[str, float] = {}
    """Phase → its mean seconds in these batches."""
    freshness_seconds: float | None = None
    """How old the newest event was when a batch was published: the largest value of these
    batches."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    late: dict[str, int] = {}
    dropped: dict[str, int] = {}
    failed: dict[str, int] = {}
    dead_letters: dict[str, int] = {}
    runs: int = 0
    failed_runs: int = 0
    cpu_seconds: float = 0.0
    """The CPU time of the runs. The time of a killed driver is unknown, and counts as 0."""
    memory_bytes: int | None = None
    """The largest peak memory of a run; None if it is unknown."""
    state_bytes: int | None = None
    """The size of all shards after the last of the runs; None if it is unknown."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the history of a pipeline, to be marked in charts."""

    at: datetime
    text: str


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The batches of a period, divided into equal parts of the period."""

    since: datetime
    until: datetime
    batches: int
    wrong: list[str]
    """Snapshots whose audits do not balance, with the reasons; at most ten."""
    complete: bool
    """Whether all batches of the period are counted, and not only the newest 5,000."""
    steps: dict[str, dict[str, int]] = {}
    """Step → reason, such as `failed`, `late` or `null_key` → number of records that the step did
    not use in all these batches."""
    received: dict[str, int] = {}
    """`STEP/INPUT` → number of rows that a step got from its input with this index, in all these
    batches."""
    results: dict[str, int] = {}
    """Step → number of rows that it passed on, in all these batches."""
    columns: list[HistoryColumn]
    """The parts in which a batch was published or a run ended, oldest first."""
    marks: list[Mark] = []
    """Changes of the topology or of Sluice's version, and notes, for example that the state was
    restored; oldest first."""


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended, in Airflow or from the command line, and what it cost.

    Each attempt of a run in Airflow counts as a separate run.
    """

    began_at: datetime
    ended_at: datetime
    run: str
    """DAG/RUN/TASK in Airflow; an empty text for a run without Airflow."""
    log: str
    """Path in Airflow of the task's log; an empty text for a run without Airflow."""
    outcome: str
    """`succeeded` or `failed`."""
    host: str
    version: str
    """The version of Sluice."""
    cpu_seconds: float | None
    """The CPU time of all processes on the driver's host; None if the driver was killed."""
    memory_bytes: int | None
    """The peak memory of these processes; None if the driver was killed."""
    state_bytes: int | None
    """The size of all shards at the end; None if the size of a shard is unknown."""


class DailyCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a pipeline's runs that ended on one day, on the hosts of their drivers."""

    pipeline: str
    owner: str
    """The owner of the pipeline's DAG; an empty text if it has none."""
    day: str
    """ISO 8601, UTC."""
    runs: int
    failed_runs: int
    cpu_seconds: float
    gigabyte_seconds: float
    """The sum of each run's peak memory times its duration."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person has done to a pipeline."""

    at: datetime
    by: str
    """The name of the user in Airflow or in the operating system; empty if it is unknown."""
    action: str
    """The action, such as `run`, `pause`, `replay` or `re-drive`. It is `change` if a run has found
    another topology or version, and for notes, for example that the state was restored."""
    detail: str
    log: str
    """Path in Airflow of the run that the action has started; an empty text if it has started
    none."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A generation of a pipeline's state."""

    generation: int
    current: bool
    """Whether this is the generation that queries read."""
    snapshot: Snapshot | None
    batches: int
    stores: list[str]
    same_topology: bool
    """Whether the topology equals the current generation's topology."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record that could not be read, processed or written."""

    place: str
    """PARTITION/OFFSET of the dead letter itself."""
    at: datetime
    reason: str
    detail: str
    source: str
    """TOPIC/PARTITION/OFFSET of the record; an empty text for an output record, and for a timer's
    failure."""
    step: str
    key: str | None
    """The key as text, with � in place of bytes that are not UTF-8."""
    value: str | None
    bytes: int
    """The size of the value."""
    headers: list[Header]
    """The record's own headers, in order, up to 10,000 bytes."""
    sluice_headers: dict[str, str]
    """The headers that Sluice has written. The record's own headers never appear here, whatever
    their names."""
    history: list[dict[str, str]]
    """Earlier failures of the same record, oldest first, if it was re-driven."""
    redriven_at: datetime | None
    not_redrivable: str
    """Why the record cannot be re-driven; an empty text if it can be re-driven."""
    redriven_to: str
    """TOPIC/PARTITION/OFFSET of the record that was written again; empty if it was not
    re-driven."""
    failed_again: bool
    """Whether the re-driven record has become a dead letter again."""


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The matching dead letters with the same reason and step."""

    reason: str
    step: str
    """The step that failed; an empty text for records that no step has processed."""
    count: int
    redriven: int
    """How many of the dead letters with this reason and step were re-driven."""
    failed_again: int
    """How many of the re-driven records have become dead letters again."""
    example: DeadLetter
    """The newest dead letter with this reason and step."""


class DeadLetters(msgspec.Struct, frozen=True):
    """The newest matching dead letters, newest first."""

    pipeline: str
    topic: str
    reasons: dict[str, int]
    """Reason → number of all matching dead letters, including letters that are not in
    `dead_letters`."""
    complete: bool
    """Whether the search reached the end of the topic within its time limit."""
    dead_letters: list[DeadLetter]
    groups: list[DeadLetterGroup]
    """The matching dead letters by reason and step, the largest group first."""
    contracts: dict[str, dict[str, str]]
    """Topic or pattern that the pipeline reads → the fields of its values, with their types."""


class FieldProblem(msgspec.Struct, frozen=True):
    """What is wrong with a field of a value."""

    path: str
    """The field's path, such as `lines[0].price`; empty for the value as a whole."""
    detail: str


class ContractCheck(msgspec.Struct, frozen=True):
    """What is wrong with a value, according to the contract of its topic."""

    topic: str
    has_contract: bool
    """Whether the contract is known. If it is not, nothing is checked."""
    problems: list[FieldProblem]


class Redriven(msgspec.Struct, frozen=True):
    """The result of re-driving dead letters."""

    redriven: int
    skipped: dict[str, int]
    """Reason → number of dead letters that were not re-driven."""
    more: bool
    """Whether there are more dead letters to re-drive; if so, send the request again."""


class Started(msgspec.Struct, frozen=True):
    """A run that was started."""

    run: str
    log: str
    """Path of the run in Airflow."""


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key whose values differ; one of the values is absent if the key is missing or added."""

    key: str
    kind: Literal["changed", "missing", "added"]
    start: datetime | None = None
    end: datetime | None = None
    before: Any = None
    after: Any = None


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two snapshots of a store."""

    pipeline: str
    store: str
    before: Snapshot
    after: Snapshot
    same: int
    changed: int
    missing: int
    """Number of entries in the first snapshot that are not in the second."""
    added: int
    examples: list[Difference]
