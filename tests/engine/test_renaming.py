"""`sluice rename`: a pipeline, a store or a step gets another name, and keeps its state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from sluice import Pipeline, session
from sluice.commands.cli import app
from sluice.engine.run.driver_lease import current_lease, this_process
from sluice.errors import LeaseError, NotFound, Refused
from sluice.kafka.dead_letter_topic import DeadLetterFilter, find_dead_letters
from sluice.kafka.redrive import redrive
from sluice.kafka.topics import topic_ids
from sluice.operations import renaming
from sluice.operations.removal import remove
from sluice.operations.renaming import find_renaming, own_topics, rename, rename_parts, undo
from sluice.plan import plan
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import LEASES, METADATA, RENAMES
from sluice.state.ledger.renames import Renames
from sluice.state.remote.copying import ShardCopy
from tests.engine.conftest import Running, Start
from tests.engine.shop import Amount, Names
from tests.engine.test_between_batches import FAST, numbered, pipeline, shard_files, totals
from tests.support.interruptions import POINTS, Crash, Point, crash, interrupted
from tests.support.postgres import new_database


@pytest.fixture(params=["sqlite", "postgresql"])
def started(
    request: pytest.FixtureRequest, start: Start, fresh_name: Callable[[str], str]
) -> Running:
    """A pipeline that has published six records, and rejected a seventh, with each database."""
    running = start(pipeline)
    if request.param == "postgresql":
        url = new_database(request.getfixturevalue("postgres"))
        running.settings = replace(running.settings, ledger=url, shards=url)
    running.send("in", *numbered(0, 6), ("k0", b"{"))
    assert running.run() == 7
    return running


def new_name(running: Running) -> str:
    return f"{running.pipeline.name}_new"


def renamed(running: Running) -> Running:
    """The pipeline of the same topics, with its new name in the file."""
    names = running.names
    made = Pipeline(new_name(running), workers=2)
    numbers = made.stream(names("in"), value=Amount)
    numbers.group_by_key().aggregate(store="totals", count="count(*)", total="sum(n)")
    numbers.group_by_key().aggregate(store="newest", number="last(n)")
    numbers.to(names("out"))
    return replace(running, pipeline=made)


def tables_with(running: Running, name: str) -> list[str]:
    """The tables of the ledger that have rows of a pipeline, apart from its leases."""
    tables: list[str] = []
    with running.ledger() as ledger, ledger.engine.connect() as connection:
        for table in METADATA.sorted_tables:
            if "pipeline" in table.c and table not in (LEASES, RENAMES):
                statement = table.select().where(table.c.pipeline == name)
                if connection.execute(statement).first() is not None:
                    tables.append(table.name)
    return tables


def groups(running: Running) -> list[str]:
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    return [group.group_id for group in admin.list_consumer_groups().result(20).valid]


def require_renamed(running: Running) -> None:
    """Nothing has the old name any more, and the renamed pipeline goes on from its state."""
    name = running.pipeline.name
    after = renamed(running)
    assert tables_with(running, name) == []
    kafka = running.settings.kafka
    assert {*topic_ids(kafka, own_topics(name))} == set()
    assert {*own_topics(new_name(running))[:2]} <= {
        *topic_ids(kafka, own_topics(new_name(running)))
    }
    assert f"sluice-{name}" not in groups(running)
    assert [file for file in shard_files(running) if f"/shards/{name}/" in str(file)] == []
    assert after.store("totals") == totals(6)
    before = after.output("out")
    assert len(before) == 6
    after.send("in", *numbered(6, 9))
    assert after.run() == 3, "no record is read again"
    assert after.store("totals") == totals(9)
    assert after.output("out")[:6] == before
    assert len(after.output("out")) == 9
    assert after.reasons() == ["malformed"]


def test_a_renamed_pipeline_keeps_its_state_and_reads_no_record_again(started: Running) -> None:
    snapshot = started.snapshot()
    done = rename(started.settings, started.pipeline.name, new_name(started))
    assert done.generations == (1,)
    assert len(done.shards) == 2
    assert renamed(started).snapshot().id == snapshot.id
    require_renamed(started)


MOMENTS = {
    "before the ledger notes it": Point(Renames, "begin"),
    "after the ledger has noted it": Point(Renames, "begin", after=True),
    "before the second shard": Point(ShardCopy, "fill"),
    "before the switch": Point(Renames, "switch"),
    "after the switch": Point(Renames, "switch", after=True),
    "before the end": Point(Renames, "finish"),
}
FUNCTIONS = {
    "before the topics": "create_copies",
    "before the dead letters": "copy_dead_letters",
    "before the markers": "write_markers",
    "before the re-drives": "copy_redrives",
    "before the old shards": "remove_forgotten",
    "before the old topics": "fence_redrives",
    "before the old group": "delete_group",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_renaming_that_was_killed_goes_on_when_it_is_repeated(
    started: Running, moment: str
) -> None:
    names = started.pipeline.name, new_name(started)
    nth = 2 if "second" in moment else 1
    with interrupted(MOMENTS[moment], crash, nth), pytest.raises(Crash):
        rename(started.settings, *names)
    rename(started.settings, *names)
    require_renamed(started)


WITH_DATABASES = [("sqlite", moment) for moment in FUNCTIONS]
# The topics are the same with each database.
WITH_DATABASES.append(("postgresql", "before the old shards"))


@pytest.mark.parametrize(("started", "moment"), WITH_DATABASES, indirect=["started"])
def test_a_renaming_that_was_killed_at_the_topics_goes_on_when_it_is_repeated(
    started: Running, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = started.pipeline.name, new_name(started)
    with monkeypatch.context() as patch:
        patch.setattr(renaming, FUNCTIONS[moment], lambda *_: crash())
        with pytest.raises(Crash):
            rename(started.settings, *names)
    rename(started.settings, *names)
    require_renamed(started)


@pytest.mark.parametrize(
    "moment",
    ["before the second shard", "before the switch"],
)
def test_until_the_ledger_has_the_new_name_the_pipeline_runs_by_the_old_one(
    started: Running, moment: str
) -> None:
    names = started.pipeline.name, new_name(started)
    with interrupted(MOMENTS[moment], crash), pytest.raises(Crash):
        rename(started.settings, *names)
    with pytest.raises(Refused, match="has not ended"):
        renamed(started).run()
    started.send("in", *numbered(6, 8))
    assert started.run() == 2
    undo(started.settings, *names)
    assert tables_with(started, names[1]) == []
    assert topic_ids(started.settings.kafka, own_topics(names[1])) == {}
    assert [file for file in shard_files(started) if f"/shards/{names[1]}/" in str(file)] == []
    assert started.run() == 0
    assert started.store("totals") == totals(8)


def test_what_was_read_after_an_interrupted_renaming_is_renamed_too(started: Running) -> None:
    names = started.pipeline.name, new_name(started)
    with interrupted(MOMENTS["before the switch"], crash), pytest.raises(Crash):
        rename(started.settings, *names)
    started.send("in", *numbered(6, 8))
    assert started.run() == 2
    rename(started.settings, *names)
    assert renamed(started).store("totals") == totals(8)
    assert renamed(started).run() == 0


def test_the_former_name_does_not_run_any_more_and_says_where_it_went(started: Running) -> None:
    names = started.pipeline.name, new_name(started)
    rename(started.settings, *names)
    with pytest.raises(Refused, match=f"{names[0]} was renamed to {names[1]}"):
        started.run()
    with pytest.raises(Refused, match="already"):
        rename(started.settings, *names)


def test_after_the_switch_neither_name_runs_until_the_renaming_has_ended(started: Running) -> None:
    names = started.pipeline.name, new_name(started)
    with interrupted(MOMENTS["after the switch"], crash), pytest.raises(Crash):
        rename(started.settings, *names)
    for running in (started, renamed(started)):
        with pytest.raises(Refused):
            running.run()
    with pytest.raises(Refused, match="can be undone"):
        undo(started.settings, *names)
    assert renamed(started).store("totals") == totals(6), "queries go on"


def test_a_running_pipeline_is_not_renamed(started: Running) -> None:
    names = started.pipeline.name, new_name(started)
    with (
        Ledger.open(started.settings.ledger) as ledger,
        current_lease(ledger, names[0], this_process("other"), FAST),
        pytest.raises(LeaseError, match="Another driver is running"),
    ):
        rename(started.settings, *names, patience=FAST)
    assert tables_with(started, names[1]) == []


@pytest.mark.parametrize("point", ["before the output", "after the output", "before the ledger"])
def test_an_interrupted_batch_is_repeated_by_the_new_name(started: Running, point: str) -> None:
    started.send("in", *numbered(6, 9), ("k0", b"{"))
    with interrupted(POINTS[point], crash), pytest.raises(Exception, match="the driver dies here"):
        started.run()
    rename(started.settings, started.pipeline.name, new_name(started))
    after = renamed(started)
    after.run()
    assert after.store("totals") == totals(9)
    assert len(after.output("out")) == 9
    assert len(after.dead_letters()) == 2


def test_a_dead_letter_that_was_redriven_is_not_redriven_again(started: Running) -> None:
    names = started.pipeline.name, new_name(started)
    kafka = started.settings.kafka
    topic = started.names("in")
    assert redrive(kafka, names[0], [topic], DeadLetterFilter()).redriven == 1
    assert started.run() == 1, "it is rejected again"
    rename(started.settings, *names)
    after = renamed(started)
    letters = find_dead_letters(kafka, names[1], DeadLetterFilter(), 10)
    assert len(letters.letters) == 2
    outcome = redrive(kafka, names[1], [topic], DeadLetterFilter())
    assert outcome.redriven == 1, "only the second one"
    assert after.run() == 1
    assert len(after.dead_letters()) == 3


def test_a_name_that_is_taken_is_refused(started: Running, start: Start) -> None:
    other = start(pipeline)
    other.settings = started.settings
    other.send("in", *numbered(0, 2))
    other.run()
    with pytest.raises(Refused, match="already"):
        rename(started.settings, started.pipeline.name, other.pipeline.name)
    with pytest.raises(NotFound, match="no pipeline 'nobody'"):
        rename(started.settings, "nobody", "somebody")


def test_a_pipeline_can_be_renamed_back(started: Running) -> None:
    names = started.pipeline.name, new_name(started)
    rename(started.settings, *names)
    rename(started.settings, *names[::-1])
    started.send("in", *numbered(6, 8))
    assert started.run() == 2
    assert started.store("totals") == totals(8)
    with pytest.raises(Refused, match=f"{names[1]} was renamed to {names[0]}"):
        renamed(started).run()


def test_the_former_name_can_be_given_to_another_pipeline(started: Running) -> None:
    names = started.pipeline.name, new_name(started)
    rename(started.settings, *names)
    remove(started.settings, names[0])
    assert started.run() == 7, "it begins anew"


def stores(names: Names, store: str) -> Pipeline:
    made = Pipeline(names.prefix, workers=2)
    numbers = made.stream(names("in"), value=Amount)
    numbers.group_by_key().aggregate(store=store, count="count(*)", total="sum(n)")
    newest = numbers.group_by_key().aggregate(store=f"{store}_newest", number="last(n)")
    newest.to_stream().to(names("out"))
    sessions = numbers.group_by_key().windowed_by(session("1 minute", grace="1 minute"))
    sessions.count(store=f"{store}_sessions")
    return made


@pytest.fixture
def with_stores(start: Start) -> Running:
    running = start(lambda names: stores(names, "totals"))
    running.send("in", *numbered(0, 6))
    assert running.run() == 6
    return running


NAMES: Any = {
    ("store", name): name.replace("totals", "sums")
    for name in ("totals", "totals_newest", "totals_sessions")
}


def test_stores_keep_their_state_under_their_new_names(with_stores: Running) -> None:
    after = replace(with_stores, pipeline=stores(with_stores.names, "sums"))
    snapshot = with_stores.snapshot()
    assert "totals_sessions" in str(snapshot.stream_times)
    with pytest.raises(Exception, match="totals was removed"):
        after.run()
    job = plan(after.pipeline).job
    said = [*rename_parts(job, after.settings, NAMES, only_look=True)]
    assert said[0] == "The store totals becomes sums, and keeps its state."
    assert with_stores.store("totals") == totals(6), "nothing was changed"
    rename_parts(job, after.settings, NAMES)
    assert after.store("sums") == totals(6)
    assert after.snapshot().stream_times.keys() == {
        key.replace("totals", "sums") for key in snapshot.stream_times
    }
    after.send("in", *numbered(6, 9))
    assert after.run() == 3
    assert after.store("sums") == totals(9)
    with after.ledger() as ledger:
        (where,) = ledger.renames.of_stores("totals")
    assert (where.pipeline, where.name) == (after.pipeline.name, "sums")


def test_stores_are_renamed_only_if_the_file_differs_in_nothing_else(with_stores: Running) -> None:
    other = Pipeline(with_stores.names.prefix, workers=2)
    numbers = other.stream(with_stores.names("in"), value=Amount)
    numbers.group_by_key().aggregate(store="sums", count="count(*)", total="max(n)")
    newest = numbers.group_by_key().aggregate(store="sums_newest", number="last(n)")
    newest.to_stream().to(with_stores.names("out"))
    sessions = numbers.group_by_key().windowed_by(session("1 minute", grace="1 minute"))
    sessions.count(store="sums_sessions")
    with pytest.raises(Refused, match="differs from its state by more than these names"):
        rename_parts(plan(other).job, with_stores.settings, NAMES)
    with pytest.raises(NotFound, match="has no store 'nothing'"):
        rename_parts(plan(other).job, with_stores.settings, {("store", "nothing"): "sums"})
    assert with_stores.run() == 0


def test_a_killed_renaming_of_stores_changes_nothing(with_stores: Running) -> None:
    job = plan(stores(with_stores.names, "sums")).job
    with (
        interrupted(Point(Renames, "rename_parts"), crash),
        pytest.raises(Crash),
    ):
        rename_parts(job, with_stores.settings, NAMES)
    assert with_stores.run() == 0
    assert with_stores.store("totals") == totals(6)


def test_the_command_says_what_it_would_change_and_then_changes_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(pipeline)
    running.send("in", *numbered(0, 6))
    running.run()
    variables = {
        "SLUICE_HOME": str(running.settings.home),
        "SLUICE_KAFKA": json.dumps({"bootstrap.servers": running.bootstrap}),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    names = running.pipeline.name, new_name(running)
    said = CliRunner().invoke(app, ["rename", *names]).output
    assert f"Topic: {names[0]}_markers becomes {names[1]}_markers." in said
    assert "Nothing was changed." in said
    with Ledger.open(running.settings.ledger) as ledger:
        assert find_renaming(ledger, running.settings, *names).phase == ""
    said = CliRunner().invoke(app, ["rename", *names, "--yes"]).output
    assert f'Pipeline("{names[1]}")' in said
    assert renamed(running).run() == 0
    assert "valid pipeline name" in CliRunner().invoke(app, ["rename", names[1], "a b"]).output
    wrong = CliRunner().invoke(app, ["rename", names[1], "--store", "x"]).output
    assert "is not OLD=NEW" in wrong
