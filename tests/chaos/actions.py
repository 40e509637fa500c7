"""What happens to a pipeline between and during its runs.

Crashes are patched into the product's classes from here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Message
from sqlalchemy import update

from sluice.engine.read.source_identity import InputError
from sluice.engine.run.compatibility import CompatibilityError
from sluice.errors import (
    BatchDiffers,
    DamagedState,
    EngineError,
    LeaseError,
    OutputError,
    SluiceError,
    WentBack,
)
from sluice.kafka.dead_letter_topic import DeadLetterFilter
from sluice.kafka.redrive import redrive
from sluice.operations.accepted_topics import accept_topics
from sluice.operations.moves import move
from sluice.operations.rebuild import Rebuild
from sluice.operations.recovery import recover
from sluice.operations.repair import RepairingRun
from sluice.operations.repartition import repartition
from sluice.plan import plan
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import SOURCES
from sluice.state.ledger.placement import Placement
from sluice.state.ledger.sources import SourcePartition
from sluice.state.model import GenerationRef
from tests.chaos.episode import Episode
from tests.support.interruptions import POINTS, Crash, Point, crash, interrupted
from tests.support.sqlite_copies import Replicas

__all__ = ["POINTS", "Crash", "Point", "crash", "interrupted"]


def attempt(episode: Episode, *expected: type[BaseException], **how: Any) -> str:
    """A run that may fail. Returns how it ended."""
    try:
        return f"read {episode.run(**how)}"
    except expected as error:
        if isinstance(error, EngineError) and "the driver dies here" not in str(error):
            raise
        return type(error).__name__


# --- Actions; each returns what it did ---


def run(episode: Episode) -> str:
    return f"run, read {episode.run()}"


def run_small_batches(episode: Episode) -> str:
    most = episode.chance.choice((2, 6, 12))
    return f"run in batches of {most}, read {episode.run(max_records=most)}"


def backlog(episode: Episode) -> str:
    episode.send_some(50)
    return f"a backlog in batches of 20, read {episode.run(max_records=20)}"


def idle(episode: Episode) -> str:
    episode.run()
    return f"two idle runs, read {episode.run() + episode.run()}"


def crashed_run(episode: Episode) -> str:
    name = episode.chance.choice([*POINTS])
    nth = episode.chance.choice((1, 1, 2, 3))
    most = episode.chance.choice((6, 12, 1_000))
    with interrupted(POINTS[name], crash, nth):
        ended = attempt(episode, Crash, EngineError, max_records=most)
    return f"crash {name}, at the {nth}. time: {ended}"


def crashed_backlog(episode: Episode) -> str:
    """The driver dies in one of many batches, so that its tasks may read the next one."""
    episode.send_some(40)
    name, nth, most = (
        episode.chance.choice([*POINTS]),
        episode.chance.randint(1, 6),
        episode.chance.choice((4, 8)),
    )
    with interrupted(POINTS[name], crash, nth):
        ended = attempt(episode, Crash, EngineError, max_records=most)
    return f"crash {name} of a backlog, at the {nth}. time: {ended}"


def killed_worker(episode: Episode) -> str:
    """One of Spark's Python processes is killed at any moment of a run over many batches."""
    episode.send_some(40)
    workers = python_workers()
    if not workers:
        return "Spark has no Python process"
    wait_s, victim = episode.chance.uniform(0, 3), episode.chance.randrange(100)

    def kill() -> None:
        alive = python_workers()
        with suppress(psutil.NoSuchProcess):
            alive[victim % len(alive)].kill()

    timer = threading.Timer(wait_s, kill)
    timer.start()
    try:
        ended = f"read {episode.run(max_records=episode.chance.choice((4, 8)))}"
    except EngineError as error:
        ended = f"{error}"
    finally:
        timer.join()
    return f"a Python process of Spark is killed after {wait_s:.1f} s: {ended}"


def python_workers() -> list[psutil.Process]:
    """The Python processes that run Spark's tasks for this process."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.name().startswith("python")
    ]


def lost_lease(episode: Episode) -> str:
    """Another driver takes the lease in the middle of a batch, and does nothing."""
    name = episode.chance.choice(("before the shards", "after the shards", "before the output"))
    if not episode.ends:
        return "no lease yet"
    episode.send_some(10)
    with interrupted(POINTS[name], episode.take_lease):
        try:
            ended = f"read {episode.run(max_records=episode.chance.choice((6, 1_000)))}"
        except (LeaseError, EngineError) as error:
            ended = type(error).__name__
    return f"the lease is lost {name}: {ended}, then read {episode.run()}"


def aborted_transaction(episode: Episode) -> str:
    episode.send_transaction(3)
    return "an aborted transaction in a source"


def another_host(episode: Episode) -> str:
    """The next run is on a host with nothing but the databases, maybe in the middle of a batch."""
    crashed = f"{crashed_run(episode)}, then " if episode.chance.random() < 0.7 else ""
    return f"{crashed}on another host, read {episode.run()}"


def rebuild(episode: Episode, **how: Any) -> str:
    if not episode.ends or episode.boundaries_lost:
        return "nothing to rebuild"
    generation = Rebuild(episode.spark, plan(episode.pipeline).job, episode.settings, **how).run()
    episode.note_ends()
    return f"rebuilt as generation {generation}"


def build_beside(episode: Episode) -> str:
    """A replay beside the current generation, promoted after another run."""
    if not episode.ends or episode.boundaries_lost:
        return "nothing to replay"
    rebuilding = Rebuild(episode.spark, plan(episode.pipeline).job, episode.settings)
    rebuilding.replay()
    episode.send_some(episode.chance.randint(0, 10))
    episode.run()
    generation = rebuilding.promote()
    episode.note_ends()
    return f"generation {generation} replayed beside and promoted"


def other_workers(episode: Episode) -> str:
    if not episode.ends:
        return "nothing to repartition"
    episode.run()
    before = len(_workers(episode))
    episode.set_workers(
        episode.chance.choice([number for number in (1, 2, 3, 4) if number != before])
    )
    try:
        generation = repartition(plan(episode.pipeline).job, episode.settings).generation
    except EngineError as error:
        if "cannot be divided by key" not in str(error):
            raise
        if episode.boundaries_lost:
            episode.set_workers(before)
            return f"there are still {before} workers"
        return f"{before} workers become {episode.pipeline.workers}: {rebuild(episode)}"
    episode.note_ends()
    return f"repartitioned from {before} to {len(_workers(episode))} workers as generation {generation}"


def _workers(episode: Episode) -> list[Any]:
    with episode.ledger() as ledger:
        return [*ledger.generations.workers(episode.pipeline.name)]


def redriven(episode: Episode) -> str:
    """Dead letters are sent again, and cannot be read again."""
    if not any(sent.is_malformed for sent in episode.sent):
        return "no dead letters"
    episode.run()
    topics = [episode.names(name) for name in ("l", "r", "t", "u", "w")]
    outcome = redrive(
        {"bootstrap.servers": episode.bootstrap}, episode.pipeline.name, topics, DeadLetterFilter()
    )
    episode.note_redriven()
    return f"re-driven: {outcome}"


def lingering(episode: Episode) -> str:
    """A run that waits for records, which arrive meanwhile."""
    settings = episode.settings
    episode.settings = replace(settings, linger_ms=800)

    def send() -> None:
        for _ in range(3):
            time.sleep(0.25)
            episode.send_some(5)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        read = episode.run()
    finally:
        sending.join()
        episode.settings = settings
    return f"a lingering run, read {read}"


def global_change(episode: Episode) -> str:
    """The rows of the global table change while no other record waits."""
    episode.run()
    episode.send_some(4, only="w")
    episode.run()
    return "the global table changes"


def edited(episode: Episode) -> str:
    """The pipeline's file gets another output, now and then after a crash.

    A change that is refused, because the interrupted batch or a store needs the pipeline as it was,
    is undone.
    """
    if not episode.ends:
        return "no output is added"
    crashed = f"{crashed_run(episode)}, then " if episode.chance.random() < 0.7 else ""
    added = episode.add_output()
    try:
        read = episode.run()
    except CompatibilityError:
        episode.remove_output()
        return f"{crashed}a further output is refused, read {episode.run()}"
    return f"{crashed}{added}, read {read}"


def more_partitions(episode: Episode) -> str:
    """A source gets an empty partition, in which stream time stands still."""
    if episode.is_timed:
        return "no partition is added"
    source = episode.chance.choice(("l", "r", "t", "u"))
    partitions = episode.add_partition(source)
    return f"{source} has {partitions} partitions"


def broker_restart(episode: Episode) -> str:
    episode.kafka.stop()
    episode.kafka.start()
    return "the broker restarts"


def lost_output(episode: Episode) -> str:
    """An output is deleted between runs or batches, or within a batch, and then restored."""
    outputs = [*dict.fromkeys(plan(episode.pipeline).job.outputs)]
    if not episode.ends or not outputs:
        return "no output is deleted"
    topic = episode.chance.choice(outputs)
    name = episode.chance.choice(("between runs", *_AROUND_THE_OUTPUT))
    most, nth = episode.chance.choice((4, 8, 1_000)), episode.chance.choice((1, 1, 2))
    episode.send_some(20)
    copies: list[Message] = []

    def lose() -> None:
        copies.extend(episode.messages(topic))
        episode.delete(topic)

    with ExitStack() as losing:
        if name == "between runs":
            lose()
        else:
            losing.enter_context(interrupted(POINTS[name], lose, nth))
        try:
            ended = f"read {episode.run(max_records=most)}"
        except OutputError:
            ended = "refused"
    if not episode.exists(topic):
        assert ended == "refused"
        episode.restore(topic, copies)
        assert accept_topics(plan(episode.pipeline).job, episode.settings, restored=True) == [topic]
    return f"{topic} is deleted {name}: {ended}, then restored, read {episode.run()}"


_AROUND_THE_OUTPUT = (
    "before the output",
    "after the output",
    "before the ledger",
    "after the ledger",
    "after the plan",
)


def moved(episode: Episode) -> str:
    """A worker's shard moves to another state server, and comes back after a run."""
    if not episode.ends or (hosts := episode.hosts()) is None:
        return "no shard is moved"
    worker = episode.chance.randrange(len(_workers(episode)))
    with episode.ledger() as ledger:
        for host in reversed(hosts):
            move(ledger, Placement(episode.pipeline.name, worker, "127.0.0.1", host.port))
            episode.send_some(5)
            episode.run()
    return f"worker {worker} is moved to another state server and back"


# --- What changes between the batches of one run ---


def went_back(episode: Episode) -> str:
    """The ledger or the shards lose commits between or within the batches of a run, as after a fail-over."""
    databases = _sqlite_files(episode)
    if not episode.ends or not databases:
        return "no database goes back"
    what = episode.chance.choice([*databases])
    replicas = Replicas(databases[what])
    lag_after = episode.chance.randint(1, 3)
    point, within = episode.chance.choice((("after the ledger", 0), ("before the output", 1)))
    lost = episode.chance.randint(1, 3)
    episode.send_some(30)

    def fail_over() -> None:
        # The model needs the batches that the ledger is about to lose.
        episode.note_ends()
        replicas.fail_over()

    with (
        interrupted(POINTS["after the ledger"], replicas.lag, lag_after),
        interrupted(POINTS[point], fail_over, lag_after + lost + within),
    ):
        try:
            ended = f"read {episode.run(max_records=4)}"
        except (WentBack, DamagedState) as error:
            ended = type(error).__name__
        except EngineError as error:
            # With an error within Spark's call, the ledger's own error is its text.
            ended = str(error)
    job = plan(episode.pipeline).job
    recovered = recover(job, episode.settings)
    episode.boundaries_lost |= recovered is not None
    read = RepairingRun(episode.spark, job, episode.settings).run()
    episode.note_ends()
    return f"the {what} goes back {point}: {ended}, recovered {recovered and recovered.snapshot}, read {read}"


def _sqlite_files(episode: Episode) -> dict[str, list[Path]]:
    """The databases that are SQLite files and can be copied."""
    home = episode.settings.home
    found = {"ledger": [home / "ledger.sqlite"]}
    if not episode.boundaries_lost:
        found["shards"] = [*(home / "shards").rglob("*.sqlite")]
    return {what: files for what, files in found.items() if files and all(map(Path.exists, files))}


def same_epoch(episode: Episode) -> str:
    """The ledger loses the lease of a paused driver.

    The next driver publishes, and the paused one is resumed.
    """
    if not episode.ends or "ledger" not in (databases := _sqlite_files(episode)):
        return "no lease is lost"
    replicas = Replicas(databases["ledger"])
    replicas.lag()
    episode.send_some(10)
    read: list[int] = []

    def fail_over() -> None:
        replicas.fail_over()
        episode.send_some(5)
        second = threading.Thread(target=lambda: read.append(episode.run()))
        second.start()
        second.join()

    name = episode.chance.choice(("before the shards", "after the shards", "before the output"))
    with interrupted(POINTS[name], fail_over):
        try:
            ended = f"read {episode.run()}"
        except (LeaseError, EngineError) as error:
            ended = type(error).__name__
    return f"the ledger loses a lease {name}: the next driver read {read}, the paused one {ended}"


def cut_off(episode: Episode) -> str:
    """A source seems to have other records at the offsets that were read, until it is right again."""
    if not episode.ends:
        return "no source is cut off"
    ref = episode.snapshot().ref
    with episode.ledger() as ledger:
        before = ledger.sources.get(ref)
    episode.send_some(20)

    def change() -> None:
        with episode.ledger() as ledger, ledger.engine.begin() as connection:
            connection.execute(
                update(SOURCES)
                .where(SOURCES.c.last >= 0)
                .values(leader_epoch=77, fingerprint="other")
            )

    with interrupted(POINTS["after the ledger"], change, episode.chance.randint(1, 2)):
        try:
            ended = f"read {episode.run(max_records=6)}"
        except InputError as error:
            ended = type(error).__name__
    newest = episode.snapshot().ref
    with episode.ledger() as ledger, ledger.engine.begin() as connection:
        for source in before:
            read = _last_read(ledger, newest, source)
            of_partition = SOURCES.c.topic == source.topic, SOURCES.c.partition == source.partition
            connection.execute(update(SOURCES).where(*of_partition).values(**read))
    return f"a source is cut off: {ended}, then read {episode.run()}"


def _last_read(ledger: Ledger, ref: GenerationRef, source: SourcePartition) -> dict[str, int | str]:
    """The last record of a partition that a published batch has read."""
    names = ("last", "fingerprint", "leader_epoch")
    last = {name: getattr(source, name) for name in names}
    for audit in ledger.audits.all(ref):
        for read in audit.sources:
            if (read.topic, read.partition) == (
                source.topic,
                source.partition,
            ) and read.fingerprint:
                last = {name: getattr(read, name) for name in names}
    return last


def wrong_clock(episode: Episode) -> str:
    """The driver's clock is wrong for a run, for an idle run, or jumps in between."""
    right = time.time
    seconds = episode.chance.choice((-86_400, -3_000, 3_000, 86_400))
    jumps = episode.chance.random() < 0.5
    shift = [0.0 if jumps else float(seconds)]

    def jump() -> None:
        shift[0] = float(seconds) - shift[0]

    with pytest.MonkeyPatch.context() as patch, interrupted(POINTS["after the ledger"], jump):
        patch.setattr(time, "time", lambda: right() + shift[0])
        read = episode.run(max_records=episode.chance.choice((6, 1_000)))
        read += episode.run()
    return f"the clock is {seconds} s wrong{' after a batch' if jumps else ''}: read {read}"


# --- The last action ---


def finish(episode: Episode) -> str:
    episode.send_some(5)
    return "5 more records"


def compacted(episode: Episode) -> str:
    """A table's source is compacted before a batch is repeated: the batch is equal, or it is refused.

    Pipelines that hold results back are left out, because nobody has seen what they would have
    written. So are those that have lost the ends of earlier batches: the rebuild after a refusal
    would divide the records otherwise than the model.
    """
    episode.run()
    topics = plan(episode.pipeline).job.topics
    sources = [name for name in ("t", "u") if name not in episode.have_transactions]
    source = next((name for name in sources if episode.names(name) in topics), None)
    if source is None or episode.is_timed or episode.boundaries_lost:
        return finish(episode)
    episode.send_some(8, only=source)
    with interrupted(POINTS["after the output"], crash):
        attempt(episode, Crash, EngineError)
    assert episode.compact(source), f"{source} was not compacted"
    try:
        return f"{source} is compacted before a batch is repeated: equal, read {episode.run()}"
    except BatchDiffers:
        episode.is_history_known = False
    refused = f"{source} is compacted before a batch is repeated: refused"
    try:
        return f"{refused}, {rebuild(episode)}"
    except EngineError as error:  # earlier records are missing, too
        if "--from-topics" not in str(error):
            raise
        # The new state has no row whose records are all gone, so a later deletion of the row
        # changes no output.
        episode.is_output_known = False
        return f"{refused} twice, {rebuild(episode, from_topics=True)}"


Action = Callable[[Episode], str]
ACTIONS: dict[Action, int] = {
    run: 3, crashed_run: 8, crashed_backlog: 3, killed_worker: 2, another_host: 3, rebuild: 1, build_beside: 1,
    other_workers: 2, edited: 1, lost_lease: 2, aborted_transaction: 2, redriven: 1, moved: 1, more_partitions: 1,
    global_change: 1, idle: 1, lingering: 1, run_small_batches: 3, backlog: 1, went_back: 2, same_epoch: 1, cut_off: 1,
    wrong_clock: 1, lost_output: 1,
}  # fmt: skip
"""Action → how often it is chosen, in proportion. In this order, rebuilds have little to replay."""
LAST: dict[Action, int] = {finish: 3, compacted: 1}


def chosen(episode: Episode, count: int) -> list[Action]:
    """Random actions."""
    choose = episode.chance.choices
    return choose([*ACTIONS], [*ACTIONS.values()], k=count) + choose([*LAST], [*LAST.values()])


def play(episode: Episode, actions: Sequence[Action]) -> list[str]:
    """Do what the actions do, with records before each. Returns what happened."""
    happened: list[str] = []
    episode.send_some(4, only="w")
    for action in actions:
        episode.send_some(episode.chance.randint(0, 12))
        happened.append(f"{action.__name__} ...")
        try:
            happened[-1] = action(episode)
        except SluiceError as error:
            raise AssertionError(
                f"{'; '.join(happened)} {type(error).__name__}: {error}"
            ) from error
    episode.run()
    return happened
