"""Queries other than single keys and pages, at any snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from datetime import timedelta
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psycopg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import make_url

from sluice.errors import Busy, Gone, NotFound, NotReached, QueryError, StateError, TooSlow
from sluice.operations.snapshot_retention import retain
from sluice.query import Answer, AsOf, Combined, Entry, Pin, Reader
from sluice.query import catalogue as catalogue_module
from sluice.query import reader as reader_module
from sluice.query.as_of import parse_positions
from sluice.query.cursors import Cursor, read_cursor, write_cursor
from sluice.query.scan_slots import Gate
from sluice.state import time_limits
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import NO_WINDOW, GenerationRef
from sluice.state.queries.aggregates import Aggregates, largest
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.ranges import RowRange
from sluice.state.time_limits import query_deadline
from tests.support.api_client import Api
from tests.support.states import NOON, States

pytestmark = pytest.mark.unit

T = TypeVar("T")
CITIES = {"a": ("Rome", "27.00"), "b": ("Oslo", "0.10"), "c": ("Rome", "0.20"), "d": ("Bern", None)}


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "FRESH_SECONDS", 0.0)


@pytest.fixture
def states(database: str) -> States:
    """Three workers; four keys in slot 1 of state row 0, each with a city and a sum."""
    states = States(database, workers=3)
    rows = {
        key: json.dumps([n, {"at": {"city": city}, "sum": "?"}])
        for n, (key, (city, _)) in enumerate(CITIES.items())
    }
    for key, (_, amount) in CITIES.items():
        rows[key] = rows[key].replace('"?"', amount or "null")
    states.publish(rows, run="first")
    return states


def ask(
    states: States,
    query: Callable[[Reader, Pin], Awaitable[T]],
    store: str = "revenue",
    **when: Any,
) -> T:
    async def run() -> T:
        reader = Reader(states.ledger)
        (result,) = await reader.catalogue.stores_named(store)
        return await query(reader, await reader.catalogue.pin(result, AsOf(**when)))

    return asyncio.run(run())


def keys(answer: Answer) -> list[str]:
    return [entry.key for entry in answer.entries]


def figures(found: Combined) -> dict[Any, Any]:
    return {
        json.loads(bytes(group.group)): (group.entries, group.sum, group.min, group.max)
        for group in found.groups
    }


def test_several_keys_keep_the_requested_order(states: States) -> None:
    answer = ask(states, lambda reader, pin: reader.multi_get(pin, ["d", "none", "a", "a", "b"]))
    assert keys(answer) == ["d", "a", "b"]
    assert [worker.status for worker in answer.workers] == ["ok"] * len(answer.workers)


@pytest.mark.attack("S5", "1,001 keys at once")
def test_too_many_keys_are_rejected(states: States) -> None:
    with pytest.raises(QueryError, match="1,001 keys"):
        ask(states, lambda reader, pin: reader.multi_get(pin, map(str, range(1_001))))


@pytest.mark.parametrize(
    ("within", "found"),
    [
        (RowRange(), 4),
        (RowRange(first="b"), 3),
        (RowRange(first="b", last="c"), 2),
        (RowRange(prefix="d"), 1),
        (RowRange(prefix="x"), 0),
    ],
)
def test_a_count_of_a_range_adds_up_all_workers(
    states: States, within: RowRange, found: int
) -> None:
    assert ask(states, lambda reader, pin: reader.count(pin, within)).entries == found
    assert ask(states, lambda reader, pin: reader.count(pin, within), "totals").entries == found


def test_a_count_ignores_rows_without_a_value_of_the_store(states: States) -> None:
    states.publish({"e": "[5,null]"})
    assert ask(states, lambda reader, pin: reader.count(pin), "totals").entries == 5
    assert ask(states, lambda reader, pin: reader.count(pin), "revenue").entries == 4


def test_aggregates_over_all_workers_are_exact(states: States) -> None:
    everything = ask(states, lambda reader, pin: reader.combine(pin, "sum"))
    assert figures(everything) == {None: (4, Decimal("27.30"), Decimal("0.10"), Decimal("27.00"))}


def test_aggregates_by_a_field(states: States) -> None:
    result = ask(states, lambda reader, pin: reader.combine(pin, "sum", "at.city", order="sum"))
    assert list(figures(result)) == ["Rome", "Oslo", "Bern"]
    assert figures(result) == {
        "Rome": (2, Decimal("27.20"), Decimal("0.20"), Decimal("27.00")),
        "Oslo": (1, Decimal("0.10"), Decimal("0.10"), Decimal("0.10")),
        "Bern": (1, None, None, None),
    }
    (first,) = ask(
        states, lambda reader, pin: reader.combine(pin, "sum", "at.city", order="sum", limit=1)
    ).groups
    assert bytes(first.group) == b'"Rome"'


def test_aggregates_by_window(states: States) -> None:
    states.publish(
        [(1, key, start, start + 15_000, f"[{start}]") for key in "abc" for start in (0, 15_000)]
    )
    result = ask(states, lambda reader, pin: reader.combine(pin, "", "_start"), "windows")
    assert figures(result) == {0: (3, 0, 0, 0), 15_000: (3, 45_000, 15_000, 15_000)}


def test_aggregated_values_must_be_numbers(states: States) -> None:
    with pytest.raises(QueryError, match=r"'at\.city' of key .* is not a number"):
        ask(states, lambda reader, pin: reader.combine(pin, "at.city"))
    with pytest.raises(QueryError, match=r"The value of key .* is not a number\. Choose a field: "):
        ask(states, lambda reader, pin: reader.top(pin, "", 2))


def test_the_largest_and_smallest_entries(states: States) -> None:
    assert keys(ask(states, lambda reader, pin: reader.top(pin, "sum", 2))) == ["a", "c"]
    assert keys(ask(states, lambda reader, pin: reader.top(pin, "sum", 9, smallest=True))) == [
        "b",
        "c",
        "a",
    ]


@given(st.lists(st.integers(-99, 99), min_size=1), st.booleans())
def test_numbers_of_many_digits_are_compared_exactly(cents: list[int], smallest: bool) -> None:
    values = [Decimal(10**37 + cent).scaleb(-2, Context(prec=99)) for cent in cents]
    entries = [
        Entry(str(n), -1, -1, msgspec.Raw(format(value, "f").encode()))
        for n, value in enumerate(values)
    ]
    found = largest(entries, "", len(values), smallest=smallest)
    assert [Decimal(bytes(entry.value).decode()) for entry in found] == sorted(
        values, reverse=not smallest
    )


@given(
    st.dictionaries(
        st.text("abc", min_size=1), st.decimals(-(10**30), 10**30, places=9), min_size=1
    )
)
def test_sums_equal_those_of_plain_python(values: dict[str, Decimal]) -> None:

    shares: list[Aggregates] = [Aggregates("", "_all") for _ in range(3)]
    for number, (key, value) in enumerate(values.items()):
        shares[number % 3].add([Entry(key, -1, -1, msgspec.Raw(format(value, "f").encode()))])
    whole = Aggregates("", "_all")
    for share in shares:
        whole.merge(share.groups())
    (result,) = whole.groups()
    with localcontext(Context(prec=200)):
        assert result.sum == sum(values.values())
    assert (result.min, result.max, result.entries) == (
        min(values.values()),
        max(values.values()),
        len(values),
    )


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
@example([1.7976931348623157e308, 5e-324, -1.7976931348623157e308])
def test_sums_of_doubles_are_exact_whatever_their_exponents(values: list[float]) -> None:
    aggregates = Aggregates("", "_all")
    aggregates.add(
        Entry(str(n), -1, -1, msgspec.Raw(repr(value).encode())) for n, value in enumerate(values)
    )
    (result,) = aggregates.groups()
    assert result.sum is not None
    # The text of a double is the number that is added, as in every JSON document.
    assert Fraction(result.sum) == sum(Fraction(repr(value)) for value in values)


def test_changes_since_a_batch(states: States) -> None:
    states.publish({"a": "[9,null]"})
    states.publish({"c": None, "b": "[1,2]"})
    ids = [(key, NO_WINDOW, NO_WINDOW) for key in "abc"]
    assert ask(states, lambda reader, pin: reader.changed_keys(pin, 0)).keys == ids
    assert ask(states, lambda reader, pin: reader.changed_keys(pin, 1)).keys == ids[1:]
    result = ask(states, lambda reader, pin: reader.changed_keys(pin, 0, limit=2))
    assert (len(result.keys), result.more) == (2, True)
    # Retention removes the deletion of "c" with the last snapshot that had it.
    retain(states.ledger, "orders", keep_snapshots=1, keep_seconds=0, now=NOON + timedelta(days=1))
    with pytest.raises(Gone, match=r"removed snapshot 1\.1 "):
        ask(states, lambda reader, pin: reader.changed_keys(pin, 1))


def test_times_need_a_store_with_windows(states: States) -> None:
    within = RowRange(start_from=0)
    questions: list[Callable[[Reader, Pin], Awaitable[object]]] = [
        lambda reader, pin: reader.scan(pin, within),
        lambda reader, pin: reader.count(pin, within),
        lambda reader, pin: reader.combine(pin, "sum", within=within),
        lambda reader, pin: reader.combine(pin, "sum", "_start"),
        lambda reader, pin: reader.top(pin, "sum", within=within),
    ]
    for question in questions:
        with pytest.raises(QueryError, match="has no windows"):
            ask(states, question)
    with pytest.raises(QueryError, match="Group by another field"):
        ask(states, lambda reader, pin: reader.combine(pin, "sum", "_start"))


def test_more_windows_of_a_key_than_an_answer_has(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "MAX_ENTRIES", 3)
    states.publish([(1, "a", start, start + 15_000, "[1]") for start in (0, 15_000, 30_000)])
    assert len(ask(states, lambda reader, pin: reader.windows(pin, "a"), "windows").entries) == 3
    states.publish([(1, "a", 45_000, 60_000, "[1]")])
    with pytest.raises(
        QueryError, match=r"Key 'a' has more than 3 windows\. Select windows by their start"
    ):
        ask(states, lambda reader, pin: reader.windows(pin, "a"), "windows")
    later = ask(states, lambda reader, pin: reader.windows(pin, "a", 15_000), "windows")
    assert [entry.window_start for entry in later.entries] == [15_000, 30_000, 45_000]


def test_as_of_a_snapshot_a_run_or_a_time(states: States) -> None:
    states.publish({"a": "[7]"}, run="second", published_at=NOON + timedelta(seconds=10))
    states.publish({"a": "[8]"}, run="second", published_at=NOON + timedelta(seconds=10.5))

    def seen(as_of: str | None) -> str:
        answer = ask(states, lambda reader, pin: reader.get(pin, "a"), "totals", as_of=as_of)
        return bytes(answer.entries[0].value).decode()

    assert [seen(as_of) for as_of in (None, "1.0", "1.1", "1.newest")] == ["8", "0", "7", "8"]
    assert [seen(as_of) for as_of in ("run:first", "run:second")] == ["0", "8"]
    times = (
        "2026-11-21T12:00:09",
        "2026-11-21T12:00:10Z",
        "2026-11-21T13:00:10.400+01:00",
        "2026-11-22",
        "1795262410500",
    )
    assert [seen(time) for time in times] == ["0", "7", "7", "8", "8"]
    # The time with which an answer names its snapshot reads that snapshot.
    states.publish({"a": "[9]"}, published_at=NOON + timedelta(seconds=11, microseconds=572_019))
    assert [seen(f"2026-11-21T12:00:11.57201{digit}Z") for digit in "89"] == ["8", "9"]
    # These have no date in UTC.
    assert seen("9999-12-31T23:59:59-14:00") == "9"
    with pytest.raises(NotFound, match="0001-01-01"):
        seen("0001-01-01T00:00:00+14:00")


def test_state_that_started_over_has_other_etags(tmp_path: Path) -> None:
    tags = set()
    for number, minutes in enumerate((0, 5)):
        states = States(f"sqlite:///{tmp_path}/{number}")
        states.publish({"a": "[1,1]"}, published_at=NOON + timedelta(minutes=minutes))
        answer = Api(states.ledger).ask("GET", "/v1/stores/totals/keys/a")
        assert answer.headers["X-Sluice-Snapshot"] == "1.0"
        tags.add(answer.headers["ETag"])
    assert len(tags) == 2


def test_a_run_without_a_snapshot(states: States) -> None:
    with pytest.raises(NotFound, match="run 'third'"):
        ask(states, lambda reader, pin: reader.get(pin, "a"), as_of="run:third")


@pytest.mark.fault("F16", "a snapshot asked for after clean-up")
def test_a_removed_snapshot_is_gone_and_lists_the_kept_ones(states: States) -> None:
    for _ in range(3):
        states.publish({"a": "[7,1]"})
    states.ledger.snapshots.forget(GenerationRef("orders", 1), 2)
    for as_of in ("1.0", "1.1", "2026-11-21T11:00:00"):
        with pytest.raises(Gone, match="any more") as gone:
            ask(states, lambda reader, pin: reader.get(pin, "a"), as_of=as_of)
        assert gone.value.extensions == {"oldest": "1.2", "newest": "1.3"}
    for as_of, why in (
        ("1.9", "There is no snapshot 1.9"),
        ("2.newest", "Generation 2 of 'orders' has none"),
    ):
        with pytest.raises(NotFound, match=why) as missing:
            ask(states, lambda reader, pin: reader.get(pin, "a"), as_of=as_of)
        assert missing.value.status == 404


@pytest.mark.fault("F16", "clean-up between a query's pin and its read")
def test_a_snapshot_removed_during_a_read_is_gone(states: States) -> None:
    states.publish({"a": "[1,1]"})

    async def read(reader: Reader, pin: Pin) -> Answer:
        states.publish(dict.fromkeys(CITIES, "[2,2]"), published_at=NOON)
        retain(
            states.ledger, "orders", keep_snapshots=1, keep_seconds=0, now=NOON + timedelta(days=1)
        )
        return await reader.all(pin)

    with pytest.raises(Gone, match=r"Retention removed snapshot 1\.0"):
        ask(states, read, as_of="1.0")


@pytest.mark.fault("F17", "snapshots and positions that are not there yet")
def test_bounds_that_are_not_reached_report_the_current_state(states: States) -> None:
    reached: dict[str, Any] = {
        "min_snapshot": "1.0",
        "min_positions": {"orders": {"0": 10, "1": 5}},
    }
    assert len(ask(states, lambda reader, pin: reader.all(pin), **reached).entries) == 4
    snapshots: list[dict[str, Any]] = [{"min_snapshot": "1.1"}, {"min_snapshot": "2.0"}]
    positions: list[dict[str, Any]] = [
        {"min_positions": {"orders": {partition: 11}}} for partition in ("0", "7")
    ]
    for bound in snapshots + positions:
        with pytest.raises(NotReached) as refused:
            ask(states, lambda reader, pin: reader.all(pin), **bound)
        assert ("orders:7" in refused.value.next_step) == ("7" in str(bound)), bound
        assert refused.value.extensions == {
            "snapshot": "1.0",
            "positions": {"orders": {"0": 10, "1": 5}},
        }


def test_a_position_of_a_topic_that_is_not_read_names_the_topics(states: States) -> None:
    with pytest.raises(
        QueryError,
        match=r"does not read topic 'other'\. Name a topic that the pipeline reads: orders",
    ) as refused:
        ask(states, lambda reader, pin: reader.all(pin), min_positions={"other": {"0": 1}})
    assert refused.value.status == 400


@pytest.mark.fault("F17", "a bound that was reached just now")
def test_a_bound_bypasses_the_cache(states: States, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "FRESH_SECONDS", 3_600.0)

    async def run() -> list[str]:
        reader = Reader(states.ledger)
        (store,) = await reader.catalogue.stores_named("totals")
        seen = [await reader.catalogue.pin(store)]
        states.publish({"a": "[1]"})
        seen += [
            await reader.catalogue.pin(store),
            await reader.catalogue.pin(store, AsOf(min_snapshot="1.1")),
        ]
        return [pin.snapshot.id for pin in seen]

    assert asyncio.run(run()) == ["1.0", "1.0", "1.1"]


@pytest.mark.parametrize(
    "text", ["orders", "orders:0", ":0:1", "orders:x:1", "orders:0:-1", "orders:0:1,", "orders:٣:1"]
)
def test_invalid_positions(text: str) -> None:
    with pytest.raises(QueryError, match="min_position"):
        parse_positions(text)
    assert parse_positions("a:0:1, a:1:2,b:0:3") == {"a": {"0": 1, "1": 2}, "b": {"0": 3}}


SLOW = 150_000
"""Enough windows of one key that querying them exceeds the test's limit."""
QUERIES: dict[str, Callable[[Reader, Pin], Awaitable[object]]] = {
    "count": lambda reader, pin: reader.count(pin, RowRange(start_from=1)),
    "changed": lambda reader, pin: reader.changed_keys(pin, 0),
    "the windows of a key": lambda reader, pin: reader.windows(pin, "a"),
    "combine": lambda reader, pin: reader.combine(pin),
    "top": lambda reader, pin: reader.top(pin),
    "page": lambda reader, pin: reader.scan(pin, limit=100_000),
}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> States:
    states = States(f"sqlite:///{tmp_path_factory.mktemp('slow')}", workers=1)
    states.publish((1, "a", n * 1_000, n * 1_000 + 1_000, f"[{n}]") for n in range(SLOW))
    return states


@pytest.mark.parametrize("kind", QUERIES)
def test_a_slow_query_is_interrupted(
    slow: States, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "QUERY_SECONDS", 0.001)
    with pytest.raises(TooSlow, match=r"exceeded its time limit of 0\.001 s"):
        ask(slow, QUERIES[kind], "windows")
    assert not threads_at_work()


def threads_at_work() -> bool:
    """Whether a thread that reads shards is still busy: the query itself must have ended."""
    time.sleep(0.05)
    return any(
        "_answer"
        in {
            frame.name
            for frame in traceback.extract_stack(sys._current_frames()[thread.ident or 0])
        }
        for thread in threading.enumerate()
        if thread.name.startswith("sluice-") and thread.ident in sys._current_frames()
    )


def test_postgresql_interrupts_a_slow_statement(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    if states.database.startswith("sqlite"):
        return  # the previous test covers SQLite
    with LocalShard.open(states.location(0)) as shard:
        driver: Any = shard._driver
        with pytest.raises(TooSlow), query_deadline(time.monotonic() + 0.1, 0.1):
            driver.fetch("SELECT pg_sleep(20)", ())
        assert driver.fetch("SELECT pg_sleep(0.2)", ()) == [("",)], (
            "without a deadline the statement runs to its end"
        )
        with pytest.raises(TooSlow), query_deadline(time.monotonic() - 1, 0.1):
            driver.fetch("SELECT 1", ())


def test_readers_wait_for_a_lock_of_another_program_only_briefly(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    if states.database.startswith("sqlite"):
        return  # a locked file is another test's
    monkeypatch.setattr("sluice.state.shard.postgres_driver._LOCKED_S", 1)
    monkeypatch.setattr("sluice.state.database.LOCKED_SECONDS", 1)
    address = states.location(0)
    with LocalShard.open(address) as shard, psycopg.connect(states.database) as other:
        other.execute(f"LOCK TABLE {make_url(address).query['schema']}.state_rows".encode())
        with pytest.raises(StateError, match="Another program has locked the shard for 1 seconds"):
            shard.verify_rows(0)
    with Ledger.open(states.database) as ledger, psycopg.connect(states.database) as other:
        other.execute("LOCK TABLE snapshots")
        with pytest.raises(StateError, match="lock timeout"):
            ledger.snapshots.recent("orders")


def test_a_count_in_a_busy_database_is_interrupted(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.publish((1, f"k{n % 50}", n * 1_000, n * 1_000 + 1_000, f"[{n}]") for n in range(60_000))
    monkeypatch.setattr(time_limits, "QUERY_SECONDS", 0.01)
    with pytest.raises(TooSlow, match="exceeded its time limit"):
        ask(states, lambda reader, pin: reader.count(pin, RowRange(start_from=1)), "windows")
    monkeypatch.setattr(time_limits, "QUERY_SECONDS", 60.0)
    assert (
        ask(
            states, lambda reader, pin: reader.count(pin, RowRange(start_from=1)), "windows"
        ).entries
        == 60_000 - 1
    )


ODD_KEYS = {
    "\0": "[1,1]",
    "\0shared": "[2,2]",
    "a\0b": "[3,3]",
    "a\1": "[4,4]",
    "\U0010ffff": "[5,5]",
    "": "[6,6]",
}


def test_keys_with_nul_are_found_counted_and_paged(states: States) -> None:
    states.publish(ODD_KEYS)
    for key, value in ODD_KEYS.items():
        (entry,) = ask(states, lambda reader, pin, key=key: reader.get(pin, key), "totals").entries  # type: ignore[misc]
        assert f"[{bytes(entry.value).decode()},{bytes(entry.value).decode()}]" == value
    assert ask(states, lambda reader, pin: reader.get(pin, "b\0"), "totals").entries == []
    assert keys(ask(states, lambda reader, pin: reader.multi_get(pin, ODD_KEYS), "totals")) == list(
        ODD_KEYS
    )
    assert (
        ask(states, lambda reader, pin: reader.count(pin, RowRange(prefix="\0")), "totals").entries
        == 2
    )
    assert keys(
        ask(states, lambda reader, pin: reader.scan(pin, RowRange(prefix="a\0")), "totals")
    ) == ["a\0b"]
    assert keys(
        ask(states, lambda reader, pin: reader.scan(pin, RowRange(last="\0z")), "totals")
    ) == [
        "",
        "\0",
        "\0shared",
    ]
    everything, after = [], None
    while True:
        page = ask(states, partial(Reader.scan, after=after, limit=1), "totals")
        everything += keys(page)
        after = page.after
        if after is None:
            break
        after = (
            read_cursor(
                write_cursor(Cursor("p", "totals", "1.1", *after), b"s"), b"s", "totals"
            ).key,
            *after[1:],
        )
    assert everything == sorted([*ODD_KEYS, *CITIES])


def test_waiting_in_the_queue_counts_towards_the_limit(
    slow: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "QUERY_SECONDS", 0.3)

    async def run() -> list[float]:
        reader = Reader(slow.ledger)
        (result,) = await reader.catalogue.stores_named("windows")
        pin = await reader.catalogue.pin(result)
        start, took = time.monotonic(), []

        async def look() -> None:
            with contextlib.suppress(TooSlow):
                await reader.windows(pin, "a")
            took.append(time.monotonic() - start)

        await asyncio.gather(*(look() for _ in range(20)))
        return took

    assert max(asyncio.run(run())) < 3, "each query takes a while"


def test_a_slow_query_does_not_block_the_event_loop(slow: States) -> None:
    async def run() -> float:
        reader, longest = Reader(slow.ledger), 0.0
        (result,) = await reader.catalogue.stores_named("windows")
        pin = await reader.catalogue.pin(result)
        asking = asyncio.ensure_future(reader.count(pin, RowRange(start_from=1)))
        while not asking.done():
            start = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - start)
        assert (await asking).entries == SLOW - 1
        return longest

    assert asyncio.run(run()) < 0.1


def test_a_gate_admits_a_few_and_rejects_the_rest() -> None:
    async def run() -> tuple[int, int]:
        gate, inside, most, refused = Gate(running=2, waiting=3), 0, 0, 0

        async def enter() -> None:
            nonlocal inside, most, refused
            try:
                async with gate:
                    inside, most = inside + 1, max(most, inside + 1)
                    await asyncio.sleep(0.01)
                    inside -= 1
            except Busy:
                refused += 1

        await asyncio.gather(*(enter() for _ in range(9)))
        await enter()
        return most, refused

    assert asyncio.run(run()) == (2, 4)


def test_a_query_waits_for_its_turn_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.query.scan_slots.WAIT_SECONDS", 0.01)

    async def run() -> None:
        gate = Gate(running=1, waiting=1)
        async with gate:
            for _ in range(3):  # those that gave up no longer wait
                with pytest.raises(Busy, match="for other queries that scan stores"):
                    await gate.__aenter__()
        async with gate:
            pass

    asyncio.run(run())


@pytest.mark.attack("S7", "a cursor signed with another key")
def test_a_cursor_needs_a_valid_signature() -> None:
    cursor = Cursor("orders", "totals", "1.1", "ключ/\x00", -1, -1)
    text = write_cursor(cursor, b"key")
    assert read_cursor(text, b"key", "totals") == cursor
    changed = text[:-1] + ("A" if text[-1] != "A" else "B")
    others = [(changed, b"key", "totals"), (text, b"other", "totals"), (text, b"key", "revenue")]
    others += [(forged, b"key", "totals") for forged in ("", "é", "A" * 40)]
    for forged, key, store in others:
        with pytest.raises(QueryError, match="not a cursor"):
            read_cursor(forged, key, store)
