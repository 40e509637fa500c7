"""A pipeline's state is spread over more or fewer workers."""

from __future__ import annotations

import dataclasses
import gc
import json
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from sluice import Pipeline
from sluice.engine.batch.job_topics import TopicLimits
from sluice.engine.batch.storage import Storage
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.markers import Writer
from sluice.engine.run.driver_lease import Lease, this_process
from sluice.errors import DamagedState, EngineError, LeaseError
from sluice.local.broker import EmbeddedKafka
from sluice.operations.repartition import repartition
from sluice.plan import Job, plan
from sluice.settings import settings
from sluice.state.ledger.generations import Generations
from sluice.state.ledger.history import Batch
from sluice.state.ledger.placement import Placement
from sluice.state.remote.opening import open_shard
from sluice.state.shard.operator_states import State
from sluice.values.key_owners import owner
from tests.faults.dying import calls
from tests.support.installation import KEYS, OPERATOR, Installation, content, expected, settings_of
from tests.support.leases import NEWEST_EPOCH
from tests.support.postgres import database_with_ledger


def job_of(workers: int) -> Job:
    pipeline = Pipeline("orders", workers=workers)
    pipeline.stream("orders", value=str).group_by_key().count(store="totals")
    return plan(pipeline).job


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path: Path, kafka: EmbeddedKafka) -> Installation:
    """An installation with two workers and two batches."""
    database = (
        ""
        if request.param == "sqlite"
        else database_with_ledger(request.getfixturevalue("postgres"))
    )
    installation = Installation(settings_of(tmp_path, database, kafka.bootstrap))
    installation.publish()
    return installation


@pytest.fixture
def files(tmp_path: Path, kafka: EmbeddedKafka) -> Installation:
    """An installation with two workers and one batch, in SQLite files."""
    return Installation(settings_of(tmp_path, bootstrap=kafka.bootstrap))


@pytest.mark.parametrize("workers", [5, 1])
def test_every_value_is_at_the_worker_that_owns_its_key(workers: int, old: Installation) -> None:
    before = old.ledger.snapshots.latest("orders")
    made = repartition(job_of(workers), old.settings)
    assert (made.generation, made.workers) == (2, workers)
    assert made.rows == 2 * len(KEYS) + 2
    assert content(old.ledger) == expected(1)
    assert old.ledger.generations.current_number("orders") == 2
    after = old.ledger.snapshots.latest("orders")
    assert before is not None
    assert after == msgspec.structs.replace(before, generation=2)
    info = old.ledger.generations.current("orders")
    assert info is not None
    assert old.ledger.snapshots.times_before(info.ref, 2) == {"count/orders/0": 1}
    assert [batch.number for batch in old.ledger.history.all(info.ref)] == [0, 1]


def test_the_next_batch_continues_in_the_new_generation(old: Installation) -> None:
    repartition(job_of(3), old.settings)
    old.states.generation, old.states.workers, old.workers = 2, 3, 3
    old.publish()
    assert content(old.ledger) == expected(1, 2)


def test_the_state_can_be_repartitioned_again(old: Installation) -> None:
    for workers in (7, 2):
        repartition(job_of(workers), old.settings)
    assert content(old.ledger) == expected(1)
    assert old.ledger.generations.numbers("orders") == [2, 3]


def test_nothing_happens_during_a_run(files: Installation) -> None:
    run = Lease(files.ledger.leases, files.ref, this_process("a run"))
    with run, pytest.raises(LeaseError, match="Another driver is running"):
        repartition(job_of(3), files.settings)
    assert files.ledger.generations.numbers("orders") == [1]


def refused(files: Installation, workers: int, error: str, next_step: str) -> None:
    with pytest.raises(EngineError, match=error) as caught:
        repartition(job_of(workers), files.settings)
    assert next_step in caught.value.next_step
    assert content(files.ledger) == expected(0)
    assert files.ledger.generations.current_number("orders") == 1


def test_a_repeated_command_changes_nothing(files: Installation) -> None:
    made = repartition(job_of(3), files.settings)
    assert repartition(job_of(3), files.settings) == dataclasses.replace(made, rows=None)
    assert files.ledger.generations.numbers("orders") == [1, 2]
    assert content(files.ledger) == expected(0)


def test_an_interrupted_batch_has_to_end_first(files: Installation) -> None:
    files.begin()
    refused(files, 3, "was interrupted: batch 1 has begun", "sluice run orders")
    files.publish()
    assert repartition(job_of(3), files.settings).generation == 2
    assert content(files.ledger) == expected(1)


def test_a_state_that_keys_share_is_refused(files: Installation) -> None:
    with open_shard(files.states.location(1), to_write=True) as shard:
        shard.write_states(
            0, [OPERATOR + 1], [State(OPERATOR + 1, "", b"buffer", shared=True)], NEWEST_EPOCH
        )
    refused(files, 3, "The keys of a worker share a state", "sluice rebuild orders")


def test_a_driver_that_has_lost_its_lease_can_write_no_more_output(
    files: Installation, kafka: EmbeddedKafka
) -> None:
    kafka.create_topics({"orders_markers": 1})
    batch = Batch(number=1, begun=1, partitions={}, ends={})
    records = [("orders_markers", pa.table({"key": [b"key"], "value": [b"{}"]}))]
    with TransactionalOutput(
        files.settings.kafka, Writer(files.ref, "orders_markers"), {"": TopicLimits()}
    ) as paused:
        assert repartition(job_of(3), files.settings).generation == 2
        with pytest.raises(EngineError, match="Writing the output"):
            paused.send(batch, records)


def test_a_state_server_that_is_gone_is_named(
    files: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SERVER_TOKEN", "a-token-of-these-tests")
    settings.cache_clear()
    files.ledger.placements.claim(
        Placement("orders", 2, "127.0.0.1", 9)
    )  # from a time when there were more workers
    refused(
        files,
        3,
        "The state server at 127.0.0.1:9 cannot be reached",
        "sluice move orders WORKER HOST:PORT",
    )
    settings.cache_clear()


def test_a_broker_that_is_down_is_named(tmp_path: Path) -> None:
    files = Installation(settings_of(tmp_path, bootstrap="127.0.0.1:9"))
    refused(files, 3, "Kafka at 127.0.0.1:9 does not answer", "Check that a broker runs")


def test_a_pipeline_without_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="has no state yet"):
        repartition(job_of(3), settings_of(tmp_path))


def test_an_altered_row_is_found(files: Installation) -> None:
    database = sqlite3.connect(files.states.location(1).removeprefix("sqlite:///"))
    with database:
        assert database.execute(
            "UPDATE state_rows SET value = '[9,null]' WHERE group_id = 0"
        ).rowcount
    database.close()
    with pytest.raises(DamagedState, match="Worker 1's shard is damaged") as caught:
        repartition(job_of(3), files.settings)
    assert "sluice rebuild orders" in caught.value.next_step
    assert files.ledger.generations.current_number("orders") == 1


def test_a_lost_row_is_found(files: Installation) -> None:
    lost = next(key for key in KEYS if owner(key, 2) == 1)
    database = sqlite3.connect(files.states.location(1).removeprefix("sqlite:///"))
    with database:
        assert database.execute("DELETE FROM state_rows WHERE key = ?", (lost,)).rowcount
    database.close()
    with pytest.raises(DamagedState, match="was published"):
        repartition(job_of(3), files.settings)
    assert files.ledger.generations.current_number("orders") == 1


def test_a_generation_whose_snapshot_is_missing_loses_no_rows(
    files: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Generations, "inherit", killed)
        with pytest.raises(KeyboardInterrupt):
            repartition(job_of(3), files.settings)
    # A user promotes the generation that is there, instead of repeating the command.
    storage = Storage.of(job_of(3), 2, files.settings)
    with pytest.raises(
        EngineError, match="has batches of generation 2 of orders, but the ledger has none"
    ) as caught:
        storage.prepare(files.ledger, None, 9)
    assert "sluice generations drop orders" in caught.value.next_step
    shards = [open_shard(address) for address in storage.locations]
    assert sum(len(shard.scan(0, 0)) for shard in shards) == len(KEYS)
    repartition(job_of(3), files.settings)
    assert content(files.ledger) == expected(0)


def test_too_few_open_files_are_named_and_the_command_is_repeated(files: Installation) -> None:
    with (
        pytest.raises(
            EngineError, match=r"was not moved to new shards in sqlite:.*/shards: .*still in use"
        ) as caught,
        few_open_files(60),
    ):
        repartition(job_of(40), files.settings)
    assert "ulimit -n" in caught.value.next_step
    assert content(files.ledger) == expected(0)
    repartition(job_of(40), files.settings)
    assert content(files.ledger) == expected(0)


@contextmanager
def few_open_files(more: int) -> Iterator[None]:
    """Let this process open only so many files more."""
    gc.collect()  # closes the files of connections that nobody uses any more
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    # The limit is one for the numbers of files, some of which may be larger than the number of open
    # files.
    *_, last = islice((number for number in count() if number not in used), more)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.heavy)])
def test_a_process_that_is_killed_leaves_the_old_or_the_new_generation(
    kills: int, tmp_path: Path, kafka: EmbeddedKafka
) -> None:
    def environment(home: str) -> dict[str, str]:
        broker = json.dumps({"bootstrap.servers": kafka.bootstrap})
        return {
            "SLUICE_HOME": str(tmp_path / home),
            "SLUICE_PIPELINES": str(tmp_path),
            "SLUICE_KAFKA": broker,
        }

    (tmp_path / "orders.py").write_text(
        "from sluice import Pipeline\n\n"
        "pipeline = Pipeline('orders', workers=3)\n"
        "pipeline.stream('orders', value=str).group_by_key().count(store='totals')\n"
    )
    Installation(settings_of(tmp_path / "whole"))
    total = calls("repartition", "orders", environment=environment("whole"))
    generations = []
    for part in range(1, kills + 1):
        killed = Installation(settings_of(tmp_path / f"killed{part}", bootstrap=kafka.bootstrap))
        last, home = total * part // (kills + 1), environment(f"killed{part}")
        assert calls("repartition", "orders", dying_after=last, environment=home) == 0
        generations.append(killed.ledger.generations.current_number("orders"))
        assert content(killed.ledger) == expected(0)
        if generations[-1] == 1:
            repartition(job_of(3), killed.settings)
            assert content(killed.ledger) == expected(0)
        assert len(killed.ledger.generations.workers("orders")) == 3
    assert generations[0] == 1
