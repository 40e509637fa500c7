"""`sluice remove`: a pipeline that is no longer run leaves nothing, and its name can be used again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from sluice.commands.cli import app
from sluice.engine.run.driver_lease import current_lease, this_process
from sluice.errors import LeaseError, NotFound, StateError
from sluice.kafka.topics import topic_ids
from sluice.operations.moves import move
from sluice.operations.removal import Removal, find_removal, remove
from sluice.settings import settings
from sluice.state.ledger.generations import Generations
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import LEASES, METADATA
from sluice.state.ledger.placement import Placement
from tests.engine.conftest import Running, Start
from tests.engine.test_between_batches import FAST, numbered, pipeline, shard_files, totals
from tests.servers.hosts import TOKEN, Host
from tests.support.interruptions import Crash, Point, crash, interrupted


@pytest.fixture
def started(start: Start) -> Running:
    """A pipeline that has published six records, and rejected a seventh."""
    running = start(pipeline)
    running.send("in", *numbered(0, 6), ("k0", b"{"))
    assert running.run() == 7
    return running


def found(running: Running) -> Removal:
    with Ledger.open(running.settings.ledger) as ledger:
        return find_removal(ledger, running.settings, running.pipeline.name)


def rows(running: Running) -> list[str]:
    """The tables of the ledger that have rows of the pipeline, apart from its leases."""
    tables: list[str] = []
    with Ledger.open(running.settings.ledger) as ledger, ledger.engine.connect() as connection:
        for table in METADATA.sorted_tables:
            if "pipeline" in table.c and table is not LEASES:
                statement = table.select().where(table.c.pipeline == running.pipeline.name)
                if connection.execute(statement).first() is not None:
                    tables.append(table.name)
    return tables


def own_topics(running: Running) -> list[str]:
    name = running.pipeline.name
    topics = [f"{name}_markers", f"{name}_dead_letters", f"{name}_redriven"]
    return [*topic_ids(running.settings.kafka, topics)]


def groups(running: Running) -> list[str]:
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    return [group.group_id for group in admin.list_consumer_groups().result(20).valid]


def test_nothing_of_the_pipeline_is_left_but_what_it_has_written(started: Running) -> None:
    name = started.pipeline.name
    assert f"sluice-{name}" in groups(started)
    removal = remove(started.settings, name)
    assert removal.generations == (1,)
    assert removal.stores == ("newest", "totals")
    assert len(removal.shards) == 2
    assert {*removal.topics} == {f"{name}_markers", f"{name}_dead_letters"}
    assert (rows(started), shard_files(started), own_topics(started)) == ([], [], [])
    assert f"sluice-{name}" not in groups(started)
    assert [value["n"] for _, value in started.output("out")] != []
    with pytest.raises(NotFound, match=f"no pipeline '{name}'"):
        remove(started.settings, name)


def test_a_later_pipeline_of_the_name_begins_anew(started: Running) -> None:
    remove(started.settings, started.pipeline.name)
    assert started.run() == 7
    assert started.store("totals") == totals(6)


def test_dead_letters_can_be_kept(started: Running) -> None:
    name = started.pipeline.name
    remove(started.settings, name, keep_dead_letters=True)
    assert own_topics(started) == [f"{name}_dead_letters"]


@pytest.mark.parametrize(
    "point",
    [
        Point(Generations, "forget_pipeline"),
        Point(Generations, "forget_pipeline", after=True),
        Point(Generations, "forget_workers"),
        Point(AdminClient, "delete_topics"),
    ],
    ids=["before the ledger", "after the ledger", "after the shards", "before the topics"],
)
def test_a_removal_that_was_killed_is_repeated(started: Running, point: Point) -> None:
    with interrupted(point, crash), pytest.raises(Crash):
        remove(started.settings, started.pipeline.name)
    remove(started.settings, started.pipeline.name)
    assert (rows(started), shard_files(started), own_topics(started)) == ([], [], [])


def test_a_running_pipeline_is_not_removed(started: Running) -> None:
    name = started.pipeline.name
    with (
        Ledger.open(started.settings.ledger) as ledger,
        current_lease(ledger, name, this_process("other"), FAST),
        pytest.raises(LeaseError, match="Another driver is running"),
    ):
        remove(started.settings, name, patience=FAST)
    assert found(started).generations == (1,)


def test_a_shard_that_cannot_be_deleted_now_is_deleted_by_the_next_call(
    started: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: str) -> None:
        raise StateError(f"{address} does not answer.")

    with monkeypatch.context() as away:
        away.setattr("sluice.operations.rebuild.drop_shard", refuse)
        with pytest.raises(StateError, match="could not be deleted") as raised:
            remove(started.settings, started.pipeline.name)
    assert f"sluice remove {started.pipeline.name}" in raised.value.next_step
    assert own_topics(started) != [], "the topics are deleted last"
    remove(started.settings, started.pipeline.name)
    assert (rows(started), shard_files(started), own_topics(started)) == ([], [], [])


def test_shards_at_state_servers_are_deleted_there(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SERVER_TOKEN", TOKEN)
    settings.cache_clear()
    started = start(pipeline)
    started.send("in", *numbered(0, 6))
    started.run()
    name = started.pipeline.name
    with started.ledger() as ledger:
        first = Host(ledger, tmp_path / "away").start(pipeline=name)
        for worker in (0, 1):
            move(ledger, Placement(name, worker, "127.0.0.1", first.port))
        assert len([*(tmp_path / "away").rglob("*.sqlite")]) == 2
        # The command is killed before the shards are deleted, and the server is restarted.
        forgotten = Point(Generations, "forget_pipeline", after=True)
        with interrupted(forgotten, crash), pytest.raises(Crash):
            remove(started.settings, name)
        first.stop()
        with pytest.raises(StateError, match="could not be deleted"):
            remove(started.settings, name)
        again = Host(ledger, tmp_path / "away", port=first.port).start()
        remove(started.settings, name)
        again.stop()
        assert [*(tmp_path / "away").rglob("*.sqlite")] == []
        assert ledger.placements.of(name) == {}
    assert rows(started) == []
    settings.cache_clear()


@pytest.fixture
def command(
    started: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Calls `sluice remove` with the settings of the pipeline."""
    (tmp_path / "jobs").mkdir()
    variables = {
        "SLUICE_HOME": str(started.settings.home),
        "SLUICE_PIPELINES": str(tmp_path / "jobs"),
        "SLUICE_KAFKA": json.dumps({"bootstrap.servers": started.bootstrap}),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()

    def call(*options: str) -> str:
        result = CliRunner().invoke(app, ["remove", started.pipeline.name, *options])
        return result.output

    return call


def test_the_command_says_what_it_would_remove_and_then_removes_it(
    started: Running, command: Callable[..., str]
) -> None:
    name = started.pipeline.name
    said = command()
    assert "These stores can no longer be queried: newest, totals." in said
    assert f"The consumer group sluice-{name} is deleted if it exists." in said
    assert f"Nothing was changed. To remove it for good: sluice remove {name} --yes" in said
    assert found(started).generations == (1,)
    assert f"airflow dags delete {name}" in command("--yes")
    assert rows(started) == []


def test_without_yes_the_command_also_says_why_it_would_refuse(
    started: Running, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.operations.removal.readers_of", lambda *_: ["reports"])
    said = " ".join(command().split())
    assert f"The newest batches of reports read stores of {started.pipeline.name}." in said
    assert "To remove it for good" not in said


def test_a_pipeline_whose_file_is_there_is_not_removed(
    started: Running, command: Callable[..., str], tmp_path: Path
) -> None:
    file = tmp_path / "jobs" / "it.py"
    file.write_text(f'pipeline = Pipeline("{started.pipeline.name}")')
    assert f"{file} still defines {started.pipeline.name}" in command("--yes").replace("\n", " ")
    assert found(started).generations == (1,)
