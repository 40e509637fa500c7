"""A replay reads a part of the topics, which an independent computation selects in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from sluice import Pipeline
from sluice.engine.read.source_identity import InputError
from sluice.errors import EngineError
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from sluice.state.ledger.snapshots import Snapshots
from sluice.state.model import GenerationRef
from sluice.values.replay_span import Span
from tests.engine.conftest import Running, Start, state_rows
from tests.engine.shop import Names, Sale, Shop, address, sale, sales_of
from tests.support.api_client import Api, User

HOUR = 3_600_000
NOON = 1_795_262_400_000
"""2026-11-21T12:00:00Z, epoch ms."""


@dataclass(frozen=True)
class Sold:
    """A sale with its place and its Kafka timestamp."""

    partition: int
    offset: int
    timestamp: int
    shop: str
    amount: int


SOLD = [
    Sold(number % 2, number // 2, NOON + (number // 3) * HOUR, "abcd"[number * 7 % 4], number + 1)
    for number in range(18)
]


def spent(names: Names, least: int = 0) -> Pipeline:
    """What customers spent in each shop whose city is known, in sales of at least an amount."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    shops = pipeline.table(names("shops"), value=Shop, key="shop", store="city")
    sales.join(shops).select(shop="left.shop", amount="left.amount").filter(
        f"amount >= {least}"
    ).group_by("shop").aggregate(store="spent", spent="sum(amount)")
    return pipeline


def unjoined(names: Names) -> Pipeline:
    """What was spent in each shop, whether its city is known or not."""
    pipeline = names.pipeline()
    sales_of(pipeline, names).to_table(store="latest")
    return pipeline


def sell(running: Running, sold: Iterable[Sold]) -> None:
    for one in sold:
        running.send(
            "sales", sale(one.shop, one.amount), partition=one.partition, timestamp=one.timestamp
        )


def opened(start: Start) -> Running:
    """A pipeline that has read all sales, in two batches.

    The shops' cities are older than all sales.
    """
    running = start(spent, sales=2)
    for shop in "abcdef":
        running.send("shops", address(shop, f"city of {shop}"), timestamp=NOON - HOUR)
    sell(running, SOLD)
    running.run(generation=1, max_records=16)
    assert len(running.snapshots()) == 2
    return running


def rebuilding(running: Running, **how: Any) -> Rebuild:
    return Rebuild(running.spark, plan(running.pipeline).job, running.settings, **how)


def totals(sold: Iterable[Sold]) -> dict[str, dict[str, float]]:
    sums: Counter[str] = Counter()
    for one in sold:
        sums[one.shop] += one.amount
    return {shop: {"spent": float(amount)} for shop, amount in sums.items()}


def built(running: Running, store: str = "spent", generation: int = 2) -> dict[str, Any]:
    """A store's values in a generation's newest snapshot."""
    ref = GenerationRef(running.pipeline.name, generation)
    with running.ledger() as ledger:
        info, batch = ledger.generations.get(ref), ledger.snapshots.last_batch(ref)
    assert info is not None
    assert batch is not None
    (found,) = [one for one in info.stores if one.name == store]
    return {
        key: value
        for worker in info.workers
        for key, value in state_rows(worker.location, found, batch)
    }


@pytest.mark.parametrize(
    "every", [pytest.param(False, id="one"), pytest.param(True, id="all", marks=pytest.mark.heavy)]
)
def test_a_replay_reads_from_a_point_up_to_a_point(start: Start, every: bool) -> None:
    running = opened(start)
    live = built(running, generation=1)
    assert live == totals(SOLD)
    sales = running.names("sales")
    chosen: list[tuple[str, str, Callable[[Sold], bool]]] = [
        ("2026-11-21T14:00:00", "", lambda one: one.timestamp >= NOON + 2 * HOUR),
        ("", "2026-11-21T15:00:00+01:00", lambda one: one.timestamp < NOON + 2 * HOUR),
        (
            "2026-11-21T13:00",
            "2026-11-21T16:30",
            lambda one: NOON + HOUR <= one.timestamp < NOON + 4.5 * HOUR,
        ),
        (f"{sales}/0/4", "", lambda one: one.partition == 1 or one.offset >= 4),
        (
            f"{sales}/0/4,{sales}/1/2",
            f"{sales}/0/6",
            lambda one: (4 <= one.offset < 6, one.offset >= 2)[one.partition],
        ),
        ("beginning", "", lambda _: True),
        # A point after the last record, and one in the table.
        (
            f"{sales}/0/4,{sales}/1/2",
            f"{sales}/0/6,{sales}/1/999,{running.names('shops')}/0/4",
            lambda one: (4 <= one.offset < 6, one.offset >= 2)[one.partition],
        ),
    ]
    for begin, until, selects in chosen if every else chosen[-1:]:
        generation = rebuilding(running).replay(Span.parse(begin, until))
        assert built(running, generation=generation) == totals(filter(selects, SOLD)), (
            begin,
            until,
        )
        # A table's state needs all its records before the end.
        assert {*built(running, "city", generation)} == {*"abcd"} | (
            {*"ef"} if "shops" not in until else set()
        )
        assert built(running, generation=1) == live


def counted(names: Names) -> Pipeline:
    """The sales of each shop, counted in any order of records."""
    pipeline = names.pipeline()
    sales_of(pipeline, names).group_by("shop").count(store="spent")
    return pipeline


def in_cities(names: Names) -> Pipeline:
    """The same, and further the sales on a market, counted too, and each shop's city."""
    pipeline = counted(names)
    shops = pipeline.global_table(names("shops"), value=Shop, key="shop")
    market = pipeline.stream(names("market"), value=Sale, key="shop", event_time="at")
    market.group_by("shop").count(store="city").join(shops).to(names("sold"))
    return pipeline


@pytest.mark.parametrize("ordered", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_topics_that_were_added_are_read_from_their_beginning(start: Start, ordered: bool) -> None:
    running = start(unjoined if ordered else counted, sales=2)
    for half in (SOLD[:9], SOLD[9:]):
        sell(running, half)
        running.run(max_records=5)
    assert len(running.snapshots()) > 2
    assert running.run() == 0
    running.kafka.create_topics({running.names(topic): 1 for topic in ("shops", "market", "sold")})
    for shop in "abcd":
        running.send("shops", address(shop, f"city of {shop}"), timestamp=NOON - HOUR)
    running.send("market", sale("a"), sale("b"), timestamp=NOON)
    running.pipeline = (spent if ordered else in_cities)(running.names)
    expected = totals(SOLD) if ordered else dict(Counter(one.shop for one in SOLD))
    cities = dict.fromkeys("abcd") if ordered else {"a": 1, "b": 1}
    again = rebuilding(running)
    assert again.replay() == 2
    assert built(running) == expected
    assert built(running, "city").keys() == cities.keys()
    # The current generation does not read the new topics. The promoted one continues where the
    # replay ended.
    running.send("market", sale("c"), timestamp=NOON)
    assert again.promote() == 2
    assert running.run() == (0 if ordered else 1)
    assert built(running, "city").keys() == cities.keys() | (set() if ordered else {"c"})
    assert [key for key, _ in (running.output("sold") if not ordered else [])] == (
        [] if ordered else ["c"]
    )
    # A topic that was removed from the pipeline is not missed.
    running.pipeline = (unjoined if ordered else counted)(running.names)
    assert rebuilding(running).replay() == 3


def test_a_part_without_records_is_not_replayed(start: Start) -> None:
    running = start(spent, sales=2)
    sell(running, SOLD[:2])
    running.send(
        "shops",
        address("a", "a table, whose records are read in any case"),
        timestamp=NOON - 30 * HOUR,
    )
    running.run()
    for begin, until, why in (
        ("2026-11-22", "", "has read none between the chosen start and end"),
        ("", "2026-11-20", "has read none between the chosen start and end"),
        (
            "nowhere/0/1",
            "",
            r"cannot begin or end in these partitions: nowhere/0\. .*sales/0, .*sales/1\.",
        ),
        (
            f"{running.names('shops')}/0/1",
            "",
            r"cannot begin or end in these partitions: .*shops/0\. ",
        ),
    ):
        with pytest.raises(EngineError, match=why):
            rebuilding(running).replay(Span.parse(begin, until))
    with running.ledger() as ledger:
        assert ledger.generations.numbers(running.pipeline.name) == [1]


def test_a_promoted_part_goes_on_and_is_rebuilt_from_where_it_began(start: Start) -> None:
    running = opened(start)
    recent = [one for one in SOLD if one.timestamp >= NOON + 2 * HOUR]
    rebuilding(running).replay(Span.parse("2026-11-21T14:00:00", "2026-11-21T16:00:00"))
    # Meanwhile the current generation goes on, and the records before the part are deleted.
    more = [Sold(0, 9, NOON + 9 * HOUR, "a", 1_000)]
    sell(running, more)
    assert running.run(generation=1) == 1
    sales = running.names("sales")
    firsts = {
        number: min(one.offset for one in recent if one.partition == number) for number in range(2)
    }
    places = [TopicPartition(sales, number, first) for number, first in firsts.items()]
    admin = AdminClient(
        {"bootstrap.servers": running.bootstrap}
    )  # its futures need it until they are done
    for done in admin.delete_records(places).values():
        done.result(60)
    assert rebuilding(running).promote() == 2
    assert built(running) == totals([*recent, *more])
    # The rebuild compares the checksums of both generations.
    assert rebuilding(running).run() == 3
    assert built(running, generation=3) == totals([*recent, *more])
    last = [Sold(1, 9, NOON + 9 * HOUR, "b", 5)]
    sell(running, last)
    assert running.run() == 1
    assert built(running, generation=3) == totals([*recent, *more, *last])
    with pytest.raises(InputError, match=rf"has lost offsets 0 to {firsts[0] - 1}"):
        rebuilding(running).replay(Span.parse(f"{sales}/0/0", ""))
    generation = rebuilding(running).replay(Span.parse("beginning", ""))
    assert built(running, generation=generation) == totals([*recent, *more, *last])


def test_the_difference_of_a_changed_pipeline_names_exactly_the_keys_that_differ(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = opened(start)
    # Shop e has only small sales, and shop f only large ones.
    sold = [*SOLD, Sold(0, 9, NOON, "e", 3), Sold(1, 9, NOON, "f", 50), Sold(1, 10, NOON, "f", 60)]
    sell(running, sold[len(SOLD) :])
    running.run()
    before, after = totals(sold), totals(one for one in sold if one.amount >= 5)
    assert built(running, generation=1) == before
    kinds = {
        key: "missing" if key not in after else "changed"
        for key, value in before.items()
        if after.get(key) != value
    }
    assert 0 < len(kinds) < len(before)
    assert {*kinds.values()} == {"changed", "missing"}

    answers: list[Any] = []
    publish = Snapshots.publish

    with running.ledger() as ledger:
        api = Api(ledger, User())

        def and_ask(snapshots: Snapshots, *of: Any) -> bool:
            is_new = publish(snapshots, *of)
            answer = api.get("/v1/stores/spent", pipeline=running.pipeline.name, limit=100)
            answers.append({entry["key"]: entry["value"] for entry in answer["entries"]})
            return is_new

        running.pipeline = spent(running.names, least=5)
        with monkeypatch.context() as patched:
            patched.setattr(Snapshots, "publish", and_ask)
            assert rebuilding(running).replay() == 2
        diff = api.get(
            "/v1/stores/spent/diff",
            pipeline=running.pipeline.name,
            before="1.newest",
            after="2.newest",
        )
    assert answers
    assert all(answer == before for answer in answers)
    assert {one["key"]: one["kind"] for one in diff["examples"]} == kinds
    numbers = {kind: diff[kind] for kind in ("same", "changed", "missing", "added")}
    counted = Counter(kinds.values())
    assert numbers == {"same": len(before) - len(kinds), "added": 0, **counted}
    for one in diff["examples"]:
        assert (one["before"], one.get("after")) == (before[one["key"]], after.get(one["key"]))
    assert built(running) == after
