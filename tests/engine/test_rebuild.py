"""Lost state is rebuilt from the topics, while queries read the rest of the old state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from sluice import Pipeline, session
from sluice.engine.read.source_identity import InputError
from sluice.engine.run.compatibility import CompatibilityError
from sluice.engine.run.driver_lease import Lease, this_process
from sluice.engine.run.job_run import JobRun
from sluice.engine.run.replay import ReplayStep, divided
from sluice.errors import EngineError, LeaseError, StateError
from sluice.operations.rebuild import Rebuild, drop_built
from sluice.plan import plan
from sluice.query import Reader
from sluice.state.ledger.generations import Generations
from sluice.state.model import GenerationRef
from tests.engine.conftest import Running, Start
from tests.engine.shop import GRACE, Names, address, by_shop, millis, sale, shop, simple_shop
from tests.engine.test_replay import a_busy_day
from tests.support.lost_commits import losing


def rebuild(running: Running, **how: Any) -> int:
    job = plan(running.pipeline).job
    return Rebuild(running.spark, job, running.settings, **how).run()


def run(running: Running) -> int:
    with running.ledger() as ledger:
        generation = ledger.generations.current_number(running.pipeline.name) or 1
    return running.run(generation=generation)


def a_shard(running: Running, damage: Callable[[bytes], bytes] | None) -> None:
    (file,) = running.settings.home.rglob("g1/worker-0.sqlite")
    for beside in file.parent.glob("worker-0.sqlite-*"):
        beside.unlink()
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(file.read_bytes()))


def test_lost_state_is_rebuilt_and_no_output_is_written_twice(start: Start) -> None:
    running = start(shop, sales=3)
    a_busy_day(running)
    running.run(max_records=30)
    running.send("sales", sale("a", at="08:30:00"), sale("b", at="08:00:00"), b"{")
    running.run()
    before = running.everything()

    a_shard(running, None)
    running.send("sales", sale("z", at="08:31:00"))
    with pytest.raises(StateError, match="rebuild"):
        run(running)
    assert rebuild(running) == 2
    after = running.everything()
    for what in ("stores", "outputs", "dead letters"):
        assert after[what] == before[what], what
    assert after["snapshots"][-1].positions == before["snapshots"][-1].positions
    assert _last_times(after) == _last_times(before)

    # The next run continues from there and reads only the new records.
    assert run(running) == 1
    assert running.store("n")["z"] == 1
    assert len(running.output("copies")) == len(before["outputs"][running.names("copies")]) + 1


def _last_times(everything: dict[str, Any]) -> Any:
    return everything["snapshots"][-1].stream_times


@pytest.mark.heavy
def test_a_rebuild_reads_in_batches_of_limited_size(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(shop, sales=3)
    a_busy_day(running)
    running.run()
    before = running.everything()
    job = plan(running.pipeline).job
    with running.ledger() as ledger:
        target = ledger.snapshots.latest(running.pipeline.name).positions  # type: ignore[union-attr]
        first, second = (GenerationRef(running.pipeline.name, number) for number in (1, 2))
        ledger.sources.add(second, ledger.sources.get(first))
        steps = [*map(ReplayStep, divided({}, target, lambda: 20))]
        JobRun(running.spark, job, running.settings, 2, 20, steps=steps).run()
        sizes = [
            sum(s.read for s in audit.sources)
            for audit in ledger.audits.all(GenerationRef(running.pipeline.name, 2))
        ]
        audits = [
            ledger.audits.newest(GenerationRef(running.pipeline.name, number)) for number in (1, 2)
        ]
        sums = [audit.checksums for audit in audits if audit is not None]
    assert len(sizes) > 2
    assert max(sizes) <= 20 + 4  # rounded up in each partition
    assert len(sums) == 2
    assert sums[0] == sums[1]
    assert running.everything() == before  # queries read the old generation


def test_queries_continue_without_the_damaged_worker(start: Start) -> None:
    running = start(simple_shop)
    running.send("sales", *(sale(key) for key in "abcdef"))
    running.run()
    whole = running.store("n")
    a_shard(running, lambda data: data[: len(data) // 2])
    running.send("sales", sale("a"))
    with pytest.raises(StateError, match="Worker 0's shard is damaged"):
        running.run()

    async def ask() -> tuple[dict[str, int], bool]:
        reader = Reader(ledger)
        (store,) = [one for one in await reader.catalogue.stores() if one.name == "n"]
        answer = await reader.all(await reader.catalogue.pin(store))
        return {entry.key: int(bytes(entry.value)) for entry in answer.entries}, answer.partial

    with running.ledger() as ledger:
        left, partial = asyncio.run(ask())
        assert partial
        assert left == {key: whole[key] for key in running.owned("n", 1)}
        rebuild(running)
        assert asyncio.run(ask()) == (whole, False)


def test_incomplete_topics_are_rejected(start: Start) -> None:
    running = start(simple_shop)
    running.send("sales", sale("a"), sale("b"), sale("b"))
    running.run()
    place = TopicPartition(running.names("sales"), 0, 2)
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    admin.delete_records([place])[place].result(20)
    with pytest.raises(
        InputError, match=r"sales, partition 0, has lost offsets 0 to 1\. .*--from-topics"
    ):
        rebuild(running)
    assert running.store("n") == {"a": 1, "b": 2}
    # The user accepts the remaining records.
    rebuild(running, from_topics=True)
    assert running.store("n") == {"b": 1}
    assert run(running) == 0


def test_a_recreated_topic_is_read_with_from_topics(start: Start) -> None:
    running = start(shop)
    running.send("shops", address("a", "Aachen"))
    running.send("sales", sale("a"), sale("b"))
    running.run()
    sales = running.names("sales")
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    admin.delete_topics([sales])[sales].result(20)
    running.kafka.create_topics({sales: 1})
    running.send("sales", sale("c"))
    with pytest.raises(InputError, match="created again"):
        rebuild(running)
    rebuild(running, from_topics=True)
    assert run(running) == 1
    assert running.store("n") == {"c": 1}
    assert running.store("shops") == {"a": {"shop": "a", "city": "Aachen"}}
    assert [key for key, _ in running.output("copies")] == ["a", "b", "c"]


def test_a_rebuild_is_rejected_while_a_driver_works(start: Start) -> None:
    running = start(simple_shop)
    running.send("sales", sale("a"))
    running.run()
    with running.ledger() as ledger:
        working = Lease(
            ledger.leases, GenerationRef(running.pipeline.name, 1), this_process("another")
        )
        with working, pytest.raises(LeaseError, match="run another"):
            rebuild(running)
        assert ledger.generations.numbers(running.pipeline.name) == [1]


def test_expired_windows_are_missing_after_a_rebuild_too(start: Start) -> None:
    def a_day(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        by_shop(pipeline, names).windowed_by(GRACE, retention="1 hour").count(store="n_window")
        return pipeline

    running = start(a_day)
    for sales in ([("08", "a"), ("08", "b"), ("10", "b")], [("12", "a")]):
        running.send("sales", *(sale(shop_name, at=f"{hour}:00:00") for hour, shop_name in sales))
        running.run(
            max_records=1
        )  # the second run compares every shard with the published checksums
    assert len(running.snapshots()) == 4
    assert running.store("n_window") == {("a", millis("12:00:00")): 1}
    rebuild(running)  # the rebuild compares the checksums
    assert running.store("n_window") == {("a", millis("12:00:00")): 1}


def counted(names: Names, *, visited: bool = False) -> Pipeline:
    """Sales of each shop, which Spark counts in any order unless visits, which are ordered, are counted too."""
    pipeline = names.pipeline()
    groups = by_shop(pipeline, names)
    groups.count(store="n")
    if visited:
        groups.windowed_by(session("1 minute")).count(store="visits").to(names("visits"))
    return pipeline


def test_a_pipeline_that_gains_an_ordered_operator_is_refused_until_it_is_rebuilt(
    start: Start,
) -> None:
    running = start(counted)
    running.send("sales", sale("a"))
    running.run()
    running.pipeline = counted(running.names, visited=True)
    with pytest.raises(CompatibilityError, match="store visits is new"):
        running.run()
    assert rebuild(running) == 2
    running.send("sales", sale("b"))
    assert JobRun(running.spark, plan(running.pipeline).job, running.settings, 2).run() == 1
    assert running.store("n") == {"a": 1, "b": 1}
    assert [key for key, _ in running.output("visits")] == ["b"]


@pytest.mark.parametrize("end", ["promote", pytest.param("drop", marks=pytest.mark.heavy)])
def test_a_replay_is_seen_only_after_it_was_promoted_and_misses_nothing(
    start: Start, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(shop, sales=3)
    a_busy_day(running)
    running.run(max_records=30)
    rebuilding = Rebuild(running.spark, plan(running.pipeline).job, running.settings)
    with pytest.raises(EngineError, match="has no generation beside the current one, 1"):
        rebuilding.promote()
    written = len(running.output("copies"))
    build = Rebuild.build

    def run_meanwhile(rebuild: Rebuild, ref: GenerationRef, steps: Sequence[ReplayStep]) -> None:
        build(rebuild, ref, steps[:1])
        running.send("sales", sale("meanwhile", at="08:30:30"))
        assert running.run(generation=1) == 1
        build(rebuild, ref, steps)

    with monkeypatch.context() as patch:
        patch.setattr(Rebuild, "build", run_meanwhile)
        assert rebuilding.replay() == 2
    with running.ledger() as ledger:
        assert ledger.generations.current_number(running.pipeline.name) == 1
        assert ledger.generations.numbers(running.pipeline.name) == [1, 2]
    running.send("sales", sale("late", at="08:31:00"))
    assert running.run(generation=1) == 1
    if end == "drop":
        assert drop_built(rebuilding.job, running.settings) == 2
        with running.ledger() as ledger:
            assert ledger.generations.numbers(running.pipeline.name) == [1]
        assert not [*running.settings.home.rglob("g2/*.sqlite")]
    else:
        assert rebuilding.promote() == 2
        assert running.store("n")["meanwhile"] == running.store("n")["late"] == 1
        running.send("sales", sale("next", at="08:32:00"))
        assert running.run(generation=2) == 1
        assert running.store("n")["next"] == 1
    assert len(running.output("copies")) == written + (2 if end == "drop" else 3)


def test_a_promotion_is_repeated_after_the_connection_was_lost_at_its_commit(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(counted)
    running.send("sales", sale("a"))
    running.run()
    rebuilding = Rebuild(running.spark, plan(running.pipeline).job, running.settings)
    assert rebuilding.replay() == 2
    with monkeypatch.context() as patch:
        patch.setattr(Generations, "promote", losing(Generations.promote))
        with pytest.raises(StateError, match="Promoting the generation failed"):
            rebuilding.promote()
    assert rebuilding.promote() == 2
    assert rebuilding.replay() == 3
    assert drop_built(rebuilding.job, running.settings) == 3
    with pytest.raises(EngineError, match="has no generation beside the current one, 2"):
        rebuilding.promote()
