"""Stores that are added to a pipeline are computed from its topics; the others keep their state."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec import Struct

from sluice import Context, Pipeline, Record, tumbling
from sluice.engine.read.source_identity import InputError
from sluice.engine.run.compatibility import CompatibilityError
from sluice.engine.run.replay import ReplayStep
from sluice.errors import EngineError
from sluice.operations.changed_stores import ChangedStores
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from sluice.state.ledger.generations import Generations
from sluice.state.model import GenerationRef
from tests.engine.conftest import Running, Start
from tests.engine.every_operator import PARTS, Part, every_operator, results, rounds, send_round
from tests.engine.shop import (
    GRACE,
    Amount,
    Build,
    Names,
    Shop,
    address,
    by_shop,
    millis,
    sale,
    sales_of,
)
from tests.support.postgres import new_database


def change(running: Running, build: Build, **how: bool) -> Running:
    """Bring the state to the changed pipeline, and return the pipeline with its state."""
    pipeline = build(running.names)
    job = plan(pipeline).job
    ChangedStores(
        running.spark, job, lambda only: plan(pipeline, only).job, running.settings, **how
    ).run()
    return replace(running, pipeline=pipeline)


def stream_times(running: Running) -> dict[str, int]:
    """The stream times of the newest snapshot, without the prefix of the test's topics."""
    return {
        name.replace(running.names.prefix, ""): at
        for name, at in running.snapshot().stream_times.items()
    }


def counted(names: Names) -> Pipeline:
    """A count per shop."""
    pipeline = names.pipeline()
    by_shop(pipeline, names).count(store="n")
    return pipeline


def summed(names: Names) -> Pipeline:
    """The same count, a sum before it that shares its rows, a window, and a count of expensive sales."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    shops = sales.group_by("shop")
    shops.aggregate(store="amounts", total="sum(amount)", most="max(amount)")
    shops.count(store="n")
    shops.windowed_by(GRACE).count(store="n_window")
    sales.filter("amount > 2").group_by("shop").count(store="expensive").to(names("expensive"))
    return pipeline


def last(names: Names) -> Pipeline:
    """The last amount per shop, by an operator."""
    pipeline = names.pipeline()
    by_shop(pipeline, names).aggregate(store="last", amount="last(amount)")
    return pipeline


def joined(names: Names) -> Pipeline:
    """The same last amount, the shops of each last amount, a join of sales, and windows that are held back."""
    return ordered(names.pipeline(), names)


def moved(names: Names) -> Pipeline:
    """The same with another output first, which changes the numbers of all steps."""
    return ordered(names.pipeline(), names, copies=True)


def ordered(pipeline: Pipeline, names: Names, *, copies: bool = False) -> Pipeline:
    sales = sales_of(pipeline, names)
    if copies:
        sales.filter("amount > 2").select("shop").to(names("copies"))
    first = sales.filter("amount > 2").group_by("shop").count(store="expensive")
    last = sales.group_by("shop").aggregate(store="last", amount="last(amount)")
    last.group_by("CAST(amount AS STRING)").count(store="shops")
    sales.join(first).select(amount="left.amount", expensive="right").to(names("joined"))
    windows = sales.group_by("shop").windowed_by(tumbling("60 s")).count(store="n_window")
    windows.suppress_until_window_closes().to(names("closed"))
    return pipeline


LAST = {"a": {"amount": 3}, "b": {"amount": 5}, "c": {"amount": 1}}
BEFORE = [
    sale("a", 1),
    sale("b", 5, "08:00:10"),
    sale("a", 3, "08:00:20"),
    sale("c", 1, "08:01:30"),
]
AFTER = [
    sale("a", 5, "08:01:31"),
    sale("d", 3, "08:01:40"),
    sale("b", 1, "08:00:59"),
    sale("c", 9, "08:04:00"),
]


@pytest.mark.heavy  # test_runs_go_on_while_stores_are_computed has more runs
@pytest.mark.parametrize(("before", "after"), [(counted, summed), (last, joined), (joined, moved)])
def test_added_stores_are_as_if_they_had_always_been_there(
    before: Build, after: Build, start: Start
) -> None:
    fresh = start(after)
    for records in (BEFORE[:2], BEFORE[2:], AFTER):
        fresh.send("sales", *records)
        fresh.run()
    running = start(before)
    for records in (BEFORE[:2], BEFORE[2:]):
        running.send("sales", *records)
        running.run()
    with pytest.raises(CompatibilityError) as caught:
        replace(running, pipeline=after(running.names)).run()
    assert "--changed-only" in caught.value.next_step
    changed = change(running, after)
    changed.send("sales", *AFTER)
    assert changed.run() == len(AFTER)
    assert changed.everything()["stores"] == fresh.everything()["stores"]
    assert stream_times(changed) == stream_times(fresh)


def many(names: Names) -> Pipeline:
    """Two stores in a group, one of which is removed, and one whose definition changes."""
    pipeline = names.pipeline()
    groups = by_shop(pipeline, names)
    groups.aggregate(store="most", most="max(amount)")
    groups.count(store="n")
    sales_of(pipeline, Names(names("other"))).group_by("shop").count(store="others")
    groups.windowed_by(GRACE).count(store="n_window")
    return pipeline


def fewer(names: Names) -> Pipeline:
    """`n` as before, another window, and no store of the other topic, which is still read."""
    pipeline = names.pipeline()
    groups = by_shop(pipeline, names)
    groups.count(store="n")
    sales_of(pipeline, Names(names("other"))).select("shop").to(names("copies"))
    groups.windowed_by(tumbling("2 minutes")).count(store="n_window")
    return pipeline


def kept(of_amounts: str | None = None, of_quantities: str | None = None) -> Build:
    """Two windowed stores with these retentions. They share rows if both are the same."""

    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        shops = by_shop(pipeline, names)
        shops.windowed_by(GRACE, retention=of_amounts).aggregate(
            store="amounts", total="sum(amount)"
        )
        shops.windowed_by(GRACE, retention=of_quantities).aggregate(
            store="quantities", total="sum(quantity)"
        )
        return pipeline

    return build


def test_stores_that_share_rows_from_now_on_or_no_longer_keep_their_state(start: Start) -> None:
    running = run_before(start, kept())
    begin = millis("08:00:00")
    amounts = {
        ("a", begin): {"total": 4},
        ("b", begin): {"total": 5},
        ("c", begin + 60_000): {"total": 1},
    }
    quantities = {
        ("a", begin): {"total": 2},
        ("b", begin): {"total": 1},
        ("c", begin + 60_000): {"total": 1},
    }
    for build in (kept(of_quantities="1 hour"), kept("1 hour", "1 hour")):
        running = change(running, build)
        assert (running.store("amounts"), running.store("quantities")) == (amounts, quantities)
    running.send("sales", sale("c", 1, "08:01:31"), sale("a", 1, "08:00:59"))
    running.run()
    at = ("c", begin + 60_000)
    assert running.store("amounts") == amounts | {at: {"total": 2}}, "the last record is late"
    assert running.store("quantities") == quantities | {at: {"total": 2}}


def shared(names: Names, in_order: bool) -> Pipeline:
    """Three stores with the same windows and the same stream time."""
    pipeline = names.pipeline()
    shops = by_shop(pipeline, names)
    counts = shops.windowed_by(GRACE)
    counts.count(store="n")
    counts.aggregate(store="total", total="sum(amount)")
    counts.aggregate(store="expensive", n="count(*)")
    if in_order:
        shops.aggregate(store="last", amount="last(amount)")
    return pipeline


def divided(names: Names, in_order: bool) -> Pipeline:
    """The first store as before, other windows for the second, and fewer records for the third."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    shops = sales.group_by("shop")
    shops.windowed_by(GRACE).count(store="n")
    shops.windowed_by(tumbling("120 seconds")).aggregate(store="total", total="sum(amount)")
    sales.filter("amount > 2").group_by("shop").windowed_by(GRACE).aggregate(
        store="expensive", n="count(*)"
    )
    if in_order:
        shops.aggregate(store="last", amount="last(amount)")
    return pipeline


@pytest.mark.parametrize("in_order", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_a_changed_store_has_the_stream_time_of_the_records_that_it_counts(
    in_order: bool, start: Start
) -> None:
    running = start(partial(shared, in_order=in_order))
    for records in ([sale("a", 5), sale("b", 1, "08:10:00")], [sale("b", 1, "08:10:10")]):
        running.send("sales", *records)
        running.run()
    changed = change(running, partial(divided, in_order=in_order))
    changed.send("sales", sale("a", 7, "08:00:30"))
    changed.run()
    eight, ten = millis("08:00:00"), millis("08:10:00")
    assert changed.store("n") == {("a", eight): 1, ("b", ten): 2}, "the last record is late"
    assert changed.store("total") == {("a", eight): {"total": 5}, ("b", ten): {"total": 2}}
    assert changed.store("expensive") == {("a", eight): {"n": 2}}, "the last record is not late"


class City(Struct):
    """An address with the city only."""

    city: str
    shop: str | None = None


def addresses(names: Names, contract: type[Struct] = Shop) -> Pipeline:
    """A count, and a global table that no step reads."""
    pipeline = names.pipeline()
    by_shop(pipeline, names).count(store="n")
    pipeline.global_table(names("shops"), value=contract, key="city")
    return pipeline


def test_a_global_table_alone_can_change(start: Start) -> None:
    running = start(addresses)
    running.send("shops", address("a", "X"), b'{"city":"Y"}')
    running.send("sales", *BEFORE)
    running.run()
    assert running.store("shops") == {"X": {"shop": "a", "city": "X"}}
    changed = change(running, partial(addresses, contract=City))
    assert changed.store("shops") == {
        "X": {"shop": "a", "city": "X"},
        "Y": {"city": "Y", "shop": None},
    }
    changed.send("sales", *AFTER)
    changed.run()
    assert changed.store("n") == {"a": 3, "b": 2, "c": 2, "d": 1}


class Visits:
    """Counts the records of a key in each of its stores."""

    stores: tuple[str, ...] = ("visits",)

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        for name in self.stores:
            store = self.context.store(name)
            store.put("n", store.get("n", 0) + 1)
        self.context.forward(record.key, {"n": 1})


class Changed:
    """The same processor, by its name, with another store."""

    class Visits(Visits):
        stores = ("visits", "more")


def visits(names: Names, kind: type[Any] = int, *, more: bool = False) -> Pipeline:
    """A processor, and with `more`, a second store of the processor and a store that follows it."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    sales.group_by("shop").aggregate(store="last", amount="last(amount)")
    stores: dict[str, Any] = {"visits": kind, **({"more": int} if more else {})}
    output = sales.process(Changed.Visits if more else Visits, stores=stores, returns=Amount).output
    if more:
        output.group_by("_key").count(store="after")
    return pipeline


@pytest.mark.heavy
def test_a_processor_keeps_its_stores_together_with_its_state(start: Start) -> None:
    running = run_before(start, visits)
    changed = change(running, partial(visits, kind=float))
    changed.send("sales", sale("a"))
    changed.run()
    assert changed.store("visits") == {"a": {"n": 3}, "b": {"n": 1}, "c": {"n": 1}}, (
        "computed again"
    )
    changed = change(changed, partial(visits, kind=float, more=True))
    assert changed.store("more") == {}, "a store that a processor has gained begins empty"
    changed.send("sales", sale("a"))
    changed.run()
    assert changed.store("visits") == {"a": {"n": 4}, "b": {"n": 1}, "c": {"n": 1}}
    assert changed.store("more") == {"a": {"n": 1}}
    assert changed.store("after") == {"a": 4, "b": 1, "c": 1}


def run_before(start: Start, build: Build) -> Running:
    running = start(build)
    running.send("sales", *BEFORE)
    running.run()
    return running


def generations(running: Running) -> list[int]:
    with running.ledger() as ledger:
        return ledger.generations.numbers(running.pipeline.name)


def delete_records(running: Running, offset: int) -> None:
    """Delete the records before an offset, as Kafka's retention does."""
    admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
    place = TopicPartition(running.names("sales"), 0, offset)
    admin.delete_records([place])[place].result(20)


def test_a_changed_store_is_computed_again_and_a_removed_one_is_gone(start: Start) -> None:
    changed = change(run_before(start, many), fewer)
    assert changed.store("n") == {"a": 2, "b": 1, "c": 1}
    begin = millis("08:00:00")
    assert changed.store("n_window") == {("a", begin): 2, ("b", begin): 1, ("c", begin): 1}
    with changed.ledger() as ledger:
        assert [store.name for store in ledger.generations.stores(changed.pipeline.name)] == [
            "n",
            "n_window",
        ]
        (note,) = ledger.notes.all(changed.pipeline.name)
    assert note.text == "Computed from the topics: n_window. Removed: most, n_window, others."
    assert generations(changed) == [1, 3], "the changed stores' own generation is removed"
    assert changed.run() == 0


def test_without_changes_nothing_happens(start: Start) -> None:
    running = run_before(start, counted)
    change(running, counted)
    assert generations(running) == [1]


def test_kept_stores_also_count_records_that_the_topic_no_longer_has(
    start: Start, postgres: str
) -> None:
    running = start(counted)
    database = new_database(postgres)
    running = replace(running, settings=replace(running.settings, ledger=database, shards=database))
    running.send("sales", *BEFORE)
    running.run()
    delete_records(running, 2)
    with pytest.raises(InputError, match="has lost offsets 0 to 1"):
        change(running, summed)
    changed = change(running, summed, from_topics=True)
    changed.send("sales", *AFTER)
    changed.run()
    assert changed.store("n") == {"a": 3, "b": 2, "c": 2, "d": 1}
    assert changed.store("amounts") == {
        "a": {"total": 8, "most": 5}, "b": {"total": 1, "most": 1}, "c": {"total": 10, "most": 9},
        "d": {"total": 3, "most": 3},
    }  # fmt: skip


def refused(running: Running, build: Build, error: str, next_step: str, **how: bool) -> None:
    with pytest.raises(EngineError, match=error) as caught:
        change(running, build, **how)
    assert next_step in caught.value.next_step
    assert running.store("last") == LAST
    assert generations(running) == [1]


def test_what_cannot_keep_single_stores_is_refused(start: Start) -> None:
    running = run_before(start, last)

    def wider(names: Names) -> Pipeline:
        pipeline = last(names)
        pipeline.workers = 5
        return pipeline

    def other_topic(names: Names) -> Pipeline:
        pipeline = last(names)
        pipeline.stream(names("more"), value=Amount).group_by_key().count(store="more")
        return pipeline

    def other_steps(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        sales_of(pipeline, names).filter("amount > 0").group_by("shop").aggregate(
            store="last", a="last(amount)"
        )
        return pipeline

    rebuild = f"sluice rebuild {running.pipeline.name}"
    refused(running, wider, "2 workers became 5", "repartition")
    refused(running, other_topic, "now also reads", rebuild)
    refused(running, other_steps, "have changed, so none of its state can be kept", rebuild)
    refused(running, counted, "have changed, so none of its state can be kept", rebuild)
    refused(
        running,
        joined,
        "shops.* would not agree with last",
        f"{rebuild} --from-topics",
        from_topics=True,
    )


@pytest.mark.parametrize(
    "functions", [("promote",), pytest.param(("inherit", "promote"), marks=pytest.mark.heavy)]
)
def test_a_call_that_was_killed_can_be_repeated(
    functions: tuple[str, ...], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = run_before(start, last)
    for function in functions:
        with monkeypatch.context() as patch:
            patch.setattr(Generations, function, killed)
            with pytest.raises(RuntimeError, match="killed"):
                change(running, joined)
        assert running.store("last") == LAST
    changed = change(running, joined)
    assert changed.store("shops") == {"1.00": 1, "3.00": 1, "5.00": 1}
    newest = 3 + len(functions)
    assert generations(changed) == [1, newest], (
        "generation 2, of the changed stores, is continued; later ones are not"
    )


def test_after_an_interrupted_run_the_advice_is_to_end_its_batch_first(start: Start) -> None:
    running = run_before(start, last)
    running.send("sales", *AFTER)
    running.crash_before_publishing()
    changed = replace(running, pipeline=joined(running.names))
    undo = f"run the pipeline once: sluice run {running.pipeline.name}"
    with pytest.raises(CompatibilityError) as caught:
        changed.run()
    assert undo in caught.value.next_step
    assert "--changed-only" not in caught.value.next_step
    refused(running, joined, "was interrupted", undo)
    assert running.run() >= 0
    with pytest.raises(CompatibilityError) as caught:
        changed.run()
    assert "--changed-only" in caught.value.next_step


def test_after_an_interrupted_run_a_changed_pipeline_can_be_rebuilt(start: Start) -> None:
    running, fresh = run_before(start, last), start(joined)
    running.send("sales", *AFTER)
    running.crash_before_publishing()
    changed = replace(running, pipeline=joined(running.names))
    job = plan(changed.pipeline).job
    Rebuild(changed.spark, job, changed.settings).run()
    changed.run()
    fresh.send("sales", *BEFORE)
    fresh.run()
    fresh.send("sales", *AFTER)
    fresh.run()
    assert changed.everything()["stores"] == fresh.everything()["stores"]


def test_runs_go_on_while_stores_are_computed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two passes is interrupted by a run of the changed file, which does not have the new stores yet."""
    fresh, running = start(joined), run_before(start, last)
    fresh.send("sales", *BEFORE)
    fresh.run()
    pipeline, rest = joined(running.names), iter([AFTER[:2], AFTER[2:]])
    changing, build = replace(running, pipeline=pipeline), Rebuild.build
    with pytest.raises(CompatibilityError) as caught:
        changing.run()
    assert "--changed-only" in caught.value.next_step

    def go_on(rebuild: Rebuild, ref: GenerationRef, steps: Sequence[ReplayStep]) -> None:
        for records in islice(rest, 1):
            for each in (fresh, changing):
                each.send("sales", *records)
            fresh.run()
            read = changing.run(plan_without=lambda names: plan(pipeline, without=names).job)
            assert read == len(records)
            assert "shops" not in changing.everything()["stores"]
        build(rebuild, ref, steps)

    monkeypatch.setattr(Rebuild, "build", go_on)
    changed = change(running, joined)
    assert next(rest, None) is None
    assert changed.everything()["stores"] == fresh.everything()["stores"]
    assert changed.store("shops") == fresh.store("shops")
    assert stream_times(changed) == stream_times(fresh)


def killed(*_: object, **__: object) -> None:
    raise RuntimeError("killed")


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_steps_that_come_and_go_have_the_results_of_steps_that_were_always_there(
    seed: int, start: Start
) -> None:
    """Before each run, some of the pipeline's parts are added, removed or moved to another place in the file."""
    chance = random.Random(seed)
    always, changed = (
        start(every_operator, sales=2),
        start(lambda names: every_operator(names, ()), sales=2),
    )
    base = time.time_ns() // 1_000_000 - 1_000_000
    expected: dict[str, dict[Any, list[Any]]] = {}
    written: dict[str, dict[Any, list[Any]]] = {}
    for number, records in enumerate(rounds(chance)):
        for running in (always, changed):
            send_round(running, records, base + 1_000 * number)
        parts = (
            list(PARTS) if number == 4 else chance.sample(PARTS, chance.randint(3, len(PARTS) - 1))
        )

        def build(names: Names, parts: list[Part] = parts) -> Pipeline:
            return every_operator(names, parts)

        changed = (
            change(changed, build) if number else replace(changed, pipeline=build(changed.names))
        )
        always.run()
        changed.run()
        stores, outputs = results(always)
        kept_stores, now_written = results(changed)
        assert kept_stores == {name: stores[name] for name in kept_stores}, f"run {number}"
        for topic, by_key in now_written.items():
            for key, values in by_key.items():
                added = values[len(written.get(topic, {}).get(key, [])) :]
                earlier = len(expected.get(topic, {}).get(key, []))
                assert added == outputs[topic][key][earlier:], f"{topic}, {key}, run {number}"
        expected, written = outputs, written | now_written
