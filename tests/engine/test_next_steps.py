"""The commands that an error names lead out: after each of them, the pipeline runs with the right state and output."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import update

from sluice import Pipeline
from sluice.errors import SluiceError
from sluice.operations.accepted_topics import accept_topics
from sluice.operations.changed_stores import ChangedStores
from sluice.operations.rebuild import Rebuild, drop_built
from sluice.operations.recovery import forget, recover
from sluice.operations.repair import RepairingRun
from sluice.operations.repartition import repartition
from sluice.plan import plan
from sluice.state.ledger.ledger_tables import SOURCES
from tests.engine.conftest import Running, Start
from tests.engine.shop import Amount, Names
from tests.engine.test_between_batches import ledger_file, numbered, pipeline, totals, written
from tests.engine.test_recovery import lose_ledger, lose_markers
from tests.support.interruptions import POINTS, Crash, crash, interrupted
from tests.support.sqlite_copies import Replicas

SENT = 12
"""How many records have been sent when an incident happens."""


class Commands:
    """The commands of the command line, without Spark."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def call(self, command: str) -> None:
        """Call a command such as `rebuild --from-topics`, as the command line does."""
        running = self._running
        job, settings = plan(running.pipeline).job, running.settings
        name, *options = command.split()
        from_topics = "--from-topics" in options
        may_repeat = "--may-repeat" in options
        if name == "run":
            RepairingRun(running.spark, job, settings).run()
        elif "--changed-only" in options:
            made = running.pipeline
            ChangedStores(running.spark, job, lambda only: plan(made, only).job, settings).run()
        elif name == "rebuild":
            Rebuild(running.spark, job, settings, from_topics=from_topics).run()
            if from_topics:
                RepairingRun(running.spark, job, settings).run()
        elif name == "repartition":
            repartition(job, settings)
        elif "--anew" in options:
            forget(job, settings)
        elif name == "recover":
            assert recover(job, settings) is not None
        elif name == "topics":
            assert accept_topics(job, settings, may_repeat=may_repeat)
        else:
            assert command == "generations drop"
            drop_built(job, settings)


def lost_ledger(running: Running) -> None:
    lose_ledger(running)


def lost_ledger_and_markers(running: Running) -> None:
    lose_ledger(running)
    lose_markers(running)


def lost_markers_of_a_planned_batch(running: Running) -> None:
    running.send("in", *numbered(SENT, SENT + 1))
    with interrupted(POINTS["after the plan"], crash), pytest.raises(Crash):
        running.run()
    lose_markers(running)


def lost_markers(running: Running) -> None:
    lose_markers(running)


def ledger_went_back(running: Running) -> None:
    replicas = Replicas(ledger_file(running))
    replicas.lag()
    running.send("in", *numbered(SENT, SENT + 1))
    running.run()
    replicas.fail_over()


def lost_shards_and_records(running: Running) -> None:
    """The topic has lost records, so lost shards cannot be restored completely."""
    shutil.rmtree(running.settings.home / "shards")
    forget_records(running, 4)


def unread_records_are_gone(running: Running) -> None:
    running.send("in", *numbered(SENT, SENT + 3))
    forget_records(running, SENT + 2)


def recreated_topic(running: Running) -> None:
    admin, topic = AdminClient({"bootstrap.servers": running.bootstrap}), running.names("in")
    admin.delete_topics([topic])[topic].result(20)
    while topic in admin.list_topics(timeout=20).topics:
        pass
    running.kafka.create_topics({topic: 1})
    running.send("in", *numbered(0, 3))


def replaced_records(running: Running) -> None:
    with running.ledger() as ledger, ledger.engine.begin() as connection:
        connection.execute(update(SOURCES).values(fingerprint="of a record that was replaced"))


def other_workers(running: Running) -> None:
    running.pipeline = rebuilt(running.names, workers=3)


def another_store(running: Running) -> None:
    running.pipeline = rebuilt(running.names, newest="max(n)")


def another_store_and_workers(running: Running) -> None:
    running.pipeline = rebuilt(running.names, workers=3, newest="max(n)")


def changed_while_interrupted(running: Running) -> None:
    running.send("in", *numbered(SENT, SENT + 1))
    with interrupted(POINTS["after the output"], crash), pytest.raises(SluiceError):
        running.run()
    running.pipeline = rebuilt(running.names, newest="max(n)")


def rebuilt(names: Names, workers: int = 2, newest: str = "last(n)") -> Pipeline:
    made = Pipeline(names.prefix, workers=workers)
    numbers = made.stream(names("in"), value=Amount)
    numbers.group_by_key().aggregate(store="totals", count="count(*)", total="sum(n)")
    numbers.group_by_key().aggregate(store="newest", number=newest)
    numbers.to(names("out"))
    return made


def forget_records(running: Running, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    end = TopicPartition(running.names("in"), 0, before)
    admin.delete_records([end])[end].result(20)


@dataclass(frozen=True)
class Case:
    """An incident, and the numbers that the state and the output have after the commands.

    The error of the run names the first command, and if this command fails, its error names the
    next one.
    """

    incident: Callable[[Running], None]
    commands: str
    state: range = range(SENT)
    output: tuple[int, ...] = tuple(range(SENT))

    def __str__(self) -> str:
        return f"{self.incident.__name__}: {self.commands}"


MORE = range(SENT + 1), tuple(range(SENT + 1))
"""A further record was read before or after the incident."""
CASES = [
    Case(lost_ledger, "recover"),
    Case(lost_ledger_and_markers, "rebuild --from-topics"),
    Case(lost_ledger_and_markers, "recover --anew", output=tuple(sorted([*range(SENT)] * 2))),
    Case(lost_markers, "topics accept"),
    Case(lost_markers_of_a_planned_batch, "topics accept, topics accept --may-repeat", *MORE),
    Case(ledger_went_back, "recover", *MORE),
    Case(lost_shards_and_records, "rebuild --from-topics", state=range(4, SENT)),
    Case(
        unread_records_are_gone,
        "rebuild --from-topics",
        range(SENT + 2, SENT + 3),
        (*range(SENT), SENT + 2),
    ),
    Case(
        recreated_topic, "rebuild --from-topics", range(3), tuple(sorted([*range(SENT), *range(3)]))
    ),
    Case(replaced_records, "rebuild --from-topics"),
    Case(other_workers, "repartition"),
    Case(another_store, "rebuild --changed-only"),
    Case(another_store, "rebuild"),
    Case(another_store_and_workers, "rebuild"),
    Case(changed_while_interrupted, "rebuild", *MORE),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_command_that_an_error_names_leads_out(start: Start, case: Case) -> None:
    running = start(pipeline)
    for begin in (0, 6):
        running.send("in", *numbered(begin, begin + 6))
        running.run()
    case.incident(running)
    commands = Commands(running)
    failing = "run"
    for command in case.commands.split(", "):
        with pytest.raises(SluiceError) as stopped:
            commands.call(failing)
        words = [word for word in command.split() if not word.startswith("--")]
        options = [word for word in command.split() if word.startswith("--")]
        advised = " ".join(["sluice", *words, running.pipeline.name, *options])
        assert re.search(rf"{advised}(?! --)", stopped.value.next_step), stopped.value.next_step
        failing = command
    commands.call(failing)
    commands.call("run")
    expected = totals(case.state.stop)
    for number in range(case.state.start):
        earlier = expected[f"k{number % 7}"]
        earlier["count"] -= 1
        earlier["total"] -= number
    assert running.store("totals") == {
        key: total for key, total in expected.items() if total["count"]
    }
    assert written(running) == [*case.output]
