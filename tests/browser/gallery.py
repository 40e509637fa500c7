"""Scenes for the pictures of the page: a fresh demo, seven, sixty and three hundred pipelines.

A scene has an API without Airflow and without a broker. Its pipelines have a day of batches.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from sluice.answers import Attempt, Run
from sluice.api.runs import DagState
from sluice.errors import EngineError, InputAway, RecordsRejected
from sluice.kafka.unread_records import Lag, Offsets
from sluice.plan import plan
from sluice.state.ledger.audits import SourceAudit
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.finished_runs import FinishedRun
from sluice.state.ledger.history import Batch
from sluice.state.ledger.leases import Holder
from sluice.state.remote.opening import create_shard
from sluice.topology import drawing, load_pipeline
from sluice.values.key_owners import owner
from tests.api.states import KINDS, orders_states, totals, windows
from tests.support.api_client import Api, User
from tests.support.state_rows import write_rows
from tests.support.states import States, make_audit, make_snapshot

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "spark_jobs"
NEVER_STARTED = ("greetings", "pos", "products", "totals", "windows", "words", "words_global")
_PAUSE_HOURS = range(9, 12)
"""Hours ago in which no batch was published."""


@dataclass
class Scene:
    """An API, and the end offsets of the topics that its pipelines read."""

    api: Api
    ends: Offsets = field(default_factory=dict)

    def read_lag(self, _admin: object, _topics: object, positions: Offsets) -> Lag:
        """Return the lag as a broker would tell it."""
        return Lag(self.ends, positions, {})


def demo(folder: Path) -> Scene:
    """Make the demo right after its queries: orders has run, the other examples have never started."""
    states = busy_orders(folder, hours=1, every_minutes=60)
    scene = _scene(states)
    scene.ends = {"orders": {0: 10_000_000}}
    del scene.api.runs.history["orders"][1:]
    for name in NEVER_STARTED:
        scene.api.runs.states[name] = DagState(False, None)
        missing = f"Topic {name} does not exist. The pipeline has never read from there."
        states.ledger.failures.keep(Failure.of(InputAway(missing), name, kind="input"))
    return scene


def many(folder: Path, count: int) -> Scene:
    """Make `count` pipelines: orders, one that failed, one that lags, one that never started, others."""
    chance = random.Random(count)
    states = busy_orders(folder, hours=24)
    scene = _scene(states)
    tags = ("payments", "shop", "search", "logistics")
    for number in range(count - 1):
        name = f"{chance.choice(('clicks', 'carts', 'stock', 'invoices', 'returns'))}_{number:03}"
        team = (tags[number % len(tags)],)
        owner = "web" if number % 3 == 0 else "sluice"
        if number % 20 == 2:
            scene.api.runs.states[name] = DagState(False, None, tags=team, owner=owner)
            continue
        topic = f"{name}_events"
        _history(states.database, name, topic, chance, 24)
        behind = chance.randrange(40_000, 900_000) if number % 20 == 1 else 0
        scene.ends[topic] = {0: 10_000_000 + behind}
        run = _run(name, "failed" if number % 20 == 0 else "success")
        scene.api.runs.states[name] = DagState(False, run, tags=team, owner=owner)
        if number % 20 == 0:
            error = EngineError(
                "Step total_by_customer: the value of amount is not a number.",
                next_step=f"Correct the step, then run sluice check {name}.",
            )
            failure = Failure.of(error, name, run=f"{name}/{run.run}/main")
            states.ledger.failures.keep(failure)
        if number % 20 == 3:
            rejected = RecordsRejected(
                "412 of 4,000 records of the newest batch were rejected: contract 412.",
                next_step="Look at the dead letters. Correct the contract or the producer.",
            )
            states.ledger.failures.keep(Failure.of(rejected, name, kind="rejections"))
    return scene


def busy_orders(folder: Path, hours: int, every_minutes: int = 30) -> States:
    """Make the orders pipeline with some hours of batches, and the state of the newest."""
    folder.mkdir(parents=True, exist_ok=True)
    states = orders_states(f"sqlite:///{folder}", workers=4)
    pipeline = load_pipeline(EXAMPLES, "orders")
    job = plan(pipeline).job
    states.ledger.generations.register(
        states.info(
            description=drawing.text(pipeline),
            picture=drawing.svg(pipeline),
            contracts={topic: dict(fields) for topic, fields in job.pipeline.contracts.items()},
        )
    )
    for by, action, detail in (
        ("ada", "pause", "new prices on Monday"),
        ("ada", "resume", ""),
        ("bob", "re-drive", "12 records: contract"),
    ):
        states.ledger.activities.add("orders", action, by, detail)
    chance = random.Random(7)
    _publish_day(states, "orders", chance, hours, every_minutes)
    _write_state(states, chance)
    return states


def _scene(states: States) -> Scene:
    api = Api(states.ledger, User(editable=("orders",)), folder=EXAMPLES)
    api.runs.root = ""
    runs = _runs("orders", "success", 30, 24)
    api.runs.states["orders"] = DagState(False, runs[0], tags=("shop",), owner="sluice")
    api.runs.history["orders"] = runs
    return Scene(api, {"orders": {0: 10_000_000, 1: 5}})


def _runs(pipeline: str, state: str, every_minutes: int, count: int) -> list[Run]:
    """Make the newest runs, newest first; the third one needed three attempts."""
    return [_run(pipeline, state, every_minutes, number) for number in range(count)]


def _run(pipeline: str, state: str, every_minutes: int = 30, number: int = 0) -> Run:
    """Make a run whose last batch was published `number` times `every_minutes` ago."""
    ended = datetime.now(UTC) - timedelta(minutes=every_minutes * number)
    log = f"/dags/{pipeline}/runs/manual__{number}/tasks/main"
    tries = 3 if number == 2 else 1
    attempts: list[Attempt] = []
    for attempt in range(tries):
        end = ended - timedelta(seconds=170 * (tries - 1 - attempt))
        start = end - timedelta(seconds=95)
        outcome = state if attempt == tries - 1 else "failed"
        queued = start - timedelta(seconds=9)
        attempts.append(Attempt(attempt + 1, outcome, queued, start, end, log))
    began = attempts[0].started_at
    assert began is not None
    asked = began - timedelta(seconds=14)
    name = f"manual__{number}"
    return Run(name, state, began, ended, log, "run", asked, attempts)  # type: ignore[arg-type]


def _history(database: str, name: str, topic: str, chance: random.Random, hours: int) -> None:
    """Publish a day of batches of a pipeline without state."""
    states = States(database, pipeline=name, workers=1)
    states.ledger.generations.register(states.info(topics=(topic,)))
    _publish_day(states, topic, chance, hours, every_minutes=chance.choice((120, 180)))


def _publish_day(
    states: States, topic: str, chance: random.Random, hours: int, every_minutes: int = 30
) -> None:
    """Publish the batches of runs every half an hour, with a pause of some hours and a burst.

    Each run has three batches. One run is from the command line.
    """
    now = datetime.now(UTC)
    holder = Holder(host="h", pid=1, process="p")
    lease = states.ledger.leases.take(states.ref, holder, states.ledger.leases.get(states.ref))
    assert lease is not None
    read = 0
    number_of_runs = hours * 60 // every_minutes
    for number in range(3 * number_of_runs, 0, -1):
        run_number, in_run = divmod(number - 1, 3)
        minutes = run_number * every_minutes
        if minutes // 60 in _PAUSE_HOURS:
            continue
        states.batch += 1
        published_at = now - timedelta(minutes=minutes, seconds=3 + 24 * in_run)
        records = round(chance.uniform(700, 1_400) * (6 if minutes // 60 == 5 else 1))
        counts = _counts(states.pipeline, records, states.batch, chance)
        source = SourceAudit(
            topic=topic, partition=0, start=read, end=read + records, read=records,
            applied=counts["applied"], dead_letters=_dead_letters(counts),
        )  # fmt: skip
        read += records
        phases = {"start": 320, "state": round(records * 1.7), "audit": 140, "output": 410}
        event_ms = round((published_at - timedelta(seconds=chance.uniform(2, 9))).timestamp() * 1e3)
        run = f"{states.pipeline}/manual__{run_number}/main" if run_number != 4 else ""
        states.ledger.snapshots.publish(
            make_snapshot(
                states.batch, pipeline=states.pipeline, published_at=published_at, counts=counts,
                run=run, positions={topic: {"0": 10_000_000}},
                stream_times={f"count/{topic}/0": event_ms},
            ),
            msgspec.structs.replace(
                make_audit(states.batch, lease.epoch, source), checksums={},
                pipeline=states.pipeline, phases=phases, step_rows=_step_rows(counts),
            ),
            batch=Batch(
                number=states.batch, begun=event_ms, partitions={topic: 1},
                ends={topic: {"0": read}},
            ),
        )  # fmt: skip
    states.ledger.leases.release(lease)
    _finish_runs(states, now, number_of_runs, every_minutes, chance)


def _finish_runs(
    states: States, now: datetime, count: int, every_minutes: int, chance: random.Random
) -> None:
    """Add the runs of these batches, and one from the command line that failed without a batch.

    The topology has changed six runs ago.
    """
    runs = states.ledger.finished_runs
    for number in reversed(range(count)):
        minutes = number * every_minutes
        if minutes // 60 in _PAUSE_HOURS:
            continue
        ended_at = now - timedelta(minutes=minutes)
        finished = FinishedRun(
            pipeline=states.pipeline,
            began_at=ended_at - timedelta(seconds=95),
            ended_at=ended_at,
            run=f"{states.pipeline}/manual__{number}/main" if number != 4 else "",
            outcome="succeeded",
            host="worker-1",
            version="0.1.0",
            topology="before" if number > 6 else "after",
            cpu_seconds=chance.uniform(8, 14),
            memory_bytes=round(chance.uniform(0.7, 1.1) * 2**30),
            state_bytes=40_000_000 + 2_000_000 * (count - number),
        )
        runs.add(finished)
    for days in range(1, 7):
        ended_at = now - timedelta(days=days)
        runs.add(
            msgspec.structs.replace(
                finished,
                began_at=ended_at - timedelta(seconds=600),
                ended_at=ended_at,
                run=f"{states.pipeline}/earlier__{days}/main",
                cpu_seconds=chance.uniform(100, 400),
                topology="before",
            )
        )
    crashed_at = now - timedelta(minutes=10)
    crashed = msgspec.structs.replace(
        finished,
        began_at=crashed_at - timedelta(seconds=20),
        ended_at=crashed_at,
        run="",
        outcome="failed",
        cpu_seconds=None,
        memory_bytes=None,
        state_bytes=None,
    )
    runs.add(crashed)


def _counts(name: str, records: int, batch: int, chance: random.Random) -> dict[str, int]:
    bad = (
        {"malformed": 3 + batch % 3, "digits": 2, "contract": batch % 2} if name == "orders" else {}
    )
    counts = {
        "read": records,
        "applied": records - sum(bad.values()),
        "rows": 100,
        f"output/{name}_out" if name != "orders" else "output/general_orders": records // 2,
    }
    if name == "orders":
        counts["late/general_orders_count_window"] = chance.choice((0, 0, 2))
    counts |= {f"dead_letter/{reason}": count for reason, count in bad.items() if count}
    return counts


def _step_rows(counts: Mapping[str, int]) -> dict[str, int]:
    """Return what the stores of orders receive: general orders go to a topic, too."""
    general = counts.get("output/general_orders", 0)
    received: dict[str, int] = {}
    if general:
        for store in ("count", "revenue", "count_window", "revenue_window"):
            received[f"received/general_orders_{store}/0"] = general
            received[f"received/restaurant_orders_{store}/0"] = counts["applied"] - general
    return received


def _dead_letters(counts: Mapping[str, int]) -> dict[str, int]:
    letters = {name: count for name, count in counts.items() if name.startswith("dead_letter/")}
    return {name.removeprefix("dead_letter/"): count for name, count in letters.items()}


def _write_state(states: States, chance: random.Random) -> None:
    """Write the entries of fifty locations as rows of the newest batch."""
    rows: list[tuple[int, str, int, int, str | None]] = []
    others = chance.sample(range(2_000, 9_999), 49)
    names = ["store_1234", *(f"store_{other}" for other in others)]
    for kind in KINDS:
        for location in names:
            starts = [
                f"2022-12-05T08:{minute}:{second:02}"
                for minute in range(50, 56)
                for second in (0, 15, 30, 45)
            ]
            orders = {
                start: (chance.randrange(2, 9), f"{chance.uniform(20, 90):.2f}") for start in starts
            }
            rows += windows(kind, location, orders)
        sums = {
            name: (chance.randrange(40, 300), f"{chance.uniform(400, 7_000):.2f}") for name in names
        }
        rows += totals(kind, sums)
    everywhere = (4, "store_1234", -1, -1, '[{"locationId":"store_1234"}]')
    lease = states.ledger.leases.get(states.ref)
    assert lease is not None
    for number, place in enumerate(states.written_at):
        own = [row for row in rows if owner(row[1], 4) == number]
        with create_shard(place) as shard:
            write_rows(shard, states.batch, [everywhere, *own], lease.epoch)
