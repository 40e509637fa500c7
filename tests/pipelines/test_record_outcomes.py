"""Each record has one outcome, whatever kinds of steps it goes to. Without any effect, it is not applied."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline, custom_windows, hopping, session, sliding, tumbling, within
from sluice.testing import TopologyTestDriver
from sluice.topology.groups import GroupedStream
from sluice.topology.streams import Stream
from sluice.values.record_metadata import How

pytestmark = pytest.mark.unit

OUTCOMES = ("applied", "filtered", "late_everywhere", "dropped/", "dead_letter/")
Record = tuple[str | None, int | None, int]
"""The key, the number and the time of a record."""


class Click(Struct):
    n: int
    more: list[int] = []


TEN = tumbling("10 seconds", grace="0 seconds")
STEPS: dict[str, Callable[[Stream[Click], GroupedStream[Click], str], object]] = {
    "group": lambda _, keyed, store: keyed.windowed_by(TEN).count(store=store),
    "operator": lambda _, keyed, store: keyed.windowed_by(TEN).aggregate(
        store=store,
        last="last(n)",
    ),
    "function": lambda _, keyed, store: keyed.windowed_by(TEN).aggregate(
        int,
        lambda n, _: n + 1,
        store=store,
        returns=int,
    ),
    "sliding": lambda _, keyed, store: keyed.windowed_by(
        sliding("5 seconds", grace="0 seconds"),
    ).count(store=store),
    "session": lambda _, keyed, store: keyed.windowed_by(
        session("5 seconds", grace="0 seconds"),
    ).count(store=store),
    "suppress": lambda _, keyed, store: (
        keyed.windowed_by(TEN).count(store=store).suppress_until_window_closes().to("closed")
    ),
    "emit": lambda _, keyed, store: keyed.windowed_by(TEN, emit="window_close").count(store=store),
    "hopping": lambda _, keyed, store: keyed.windowed_by(
        hopping("10 seconds", advance="5 seconds", grace="0 seconds"),
    ).aggregate(store=store, last="last(n)"),
    "own windows": lambda _, keyed, store: keyed.windowed_by(
        custom_windows(lambda time: [(time, time + 1_000)] if time % 7 else []),
    ).count(store=store),
    "another key": lambda clicks, _, store: (
        clicks.group_by("n % 3").windowed_by(TEN).aggregate(store=store, last="last(n)")
    ),
    "deduplicate": lambda clicks, _, store: clicks.deduplicate(
        "cast(n as string)",
        within="5 seconds",
    ).to("once"),
    "latest": lambda _, keyed, store: keyed.aggregate(store=store, last="last(n)"),
    "versioned": lambda clicks, _, store: clicks.to_table(store=store, versioned="5 seconds"),
    "fails": lambda clicks, keyed, store: keyed.aggregate(
        int,
        lambda n, click: n + 10 // click.n,
        store=store,
        returns=int,
    ),
}
"""Steps that take a stream of clicks. A step may add up the clicks of each key."""


def build(*kinds: str, workers: int = 1) -> Pipeline:
    """A pipeline with these steps after one stream."""
    pipeline = Pipeline("clicks", workers=workers)
    clicks = pipeline.stream("clicks", value=Click)
    for number, kind in enumerate(kinds):
        branch = clicks.filter(f"n <> {-1 - len(kind) % 3}")
        STEPS[kind](branch, branch.group_by_key(), f"s{number}")
    return pipeline


def outcomes(pipeline: Pipeline, *batches: Sequence[Record]) -> Counter[str]:
    """The number of records with each outcome, after these batches of records."""
    with TopologyTestDriver(pipeline) as driver:
        for records in batches:
            for key, n, time in records:
                driver.pipe("clicks", None if n is None else {"n": n}, key=key, timestamp=time)
            driver.commit()
        counts = driver.counts()
    assert counts["read"] == sum(map(len, batches))
    found = Counter(
        {name: count for name, count in counts.items() if name.startswith(OUTCOMES) and count},
    )
    assert found.total() == counts["read"], f"the outcomes do not balance: {counts}"
    return found


ON_TIME: Record = "a", 1, 1_000_000
LATE: Record = "a", 2, 500_000
WINDOWED = (
    "group",
    "operator",
    "function",
    "sliding",
    "session",
    "suppress",
    "emit",
    "hopping",
    "versioned",
)


@pytest.mark.parametrize("kind", WINDOWED)
def test_a_record_that_is_late_for_its_only_store_is_late(kind: str) -> None:
    assert outcomes(build(kind), [ON_TIME, LATE]) == {"applied": 1, "late_everywhere": 1}


@pytest.mark.parametrize("kind", [*WINDOWED, "own windows"])
def test_late_records_are_counted_alike_in_columns_and_in_later_batches(kind: str) -> None:
    many = [(f"k{number % 20}", number, 1_000_001 + number) for number in range(400)]
    late: list[Record] = [(f"k{number % 7}", number, 500_001) for number in range(200)]
    assert outcomes(build(kind), many, late)["late_everywhere"] == 200
    assert outcomes(build(kind), [*many, *late])["late_everywhere"] == 200


@pytest.mark.parametrize(
    "others",
    [("operator",), ("group",), ("session", "another key"), ("sliding", "hopping")],
)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_record_is_late_only_if_all_of_its_stores_find_it_late(
    others: tuple[str, ...],
    workers: int,
) -> None:
    kinds = ("operator", *others)
    records = [("a", 1, 1_000_000), ("b", 2, 500_000), ("c", 3, 400_000)]
    assert outcomes(build(*kinds, workers=workers), records) == {"applied": 1, "late_everywhere": 2}
    assert outcomes(build(*kinds, "latest", workers=workers), records) == {"applied": 3}
    copied = build(*kinds, workers=workers)
    copied.stream("other", value=Click)
    assert outcomes(copied, records) == {"applied": 1, "late_everywhere": 2}


def test_a_record_that_is_written_somewhere_is_applied_although_it_is_late() -> None:
    pipeline = Pipeline("clicks", workers=1)
    clicks = pipeline.stream("clicks", value=Click)
    clicks.to("copies")
    clicks.group_by_key().windowed_by(TEN).aggregate(store="s", last="last(n)")
    assert outcomes(pipeline, [ON_TIME, LATE]) == {"applied": 2}


def test_a_record_that_is_late_for_some_hopping_windows_is_applied() -> None:
    records = [("a", 1, 1_000_000), ("a", 2, 999_000)]
    assert outcomes(build("hopping"), records) == {"applied": 2}


def test_a_record_that_an_open_session_takes_in_is_not_late() -> None:
    records = [("a", 1, 1_000_000), ("b", 2, 1_004_000), ("a", 3, 998_000), ("c", 4, 998_000)]
    assert outcomes(build("session"), records) == {"applied": 3, "late_everywhere": 1}


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_a_join_of_streams_uses_every_record_however_late(how: How) -> None:
    pipeline = Pipeline("clicks", workers=1)
    clicks = pipeline.stream("clicks", value=Click)
    others = pipeline.stream("others", value=Click)
    clicks.join(others, within("1 second", grace="0 seconds"), how=how).to("pairs")
    assert outcomes(pipeline, [ON_TIME, LATE]) == {"applied": 2}


def test_a_row_that_a_later_step_finds_late_was_applied_before() -> None:
    pipeline = Pipeline("clicks", workers=1)
    clicks = pipeline.stream("clicks", value=Click)
    once = clicks.deduplicate("concat(_key, cast(n as string))", within="1 second")
    once.group_by_key().windowed_by(TEN).aggregate(store="s", last="last(n)")
    assert outcomes(pipeline, [ON_TIME, LATE]) == {"applied": 2}


@pytest.mark.parametrize("count", [1, 2, 400])
def test_a_record_of_several_rows_is_late_if_all_of_its_rows_are(count: int) -> None:
    pipeline = Pipeline("clicks", workers=2)
    several = pipeline.stream("clicks", value=Click).flat_map_values("more")
    several.group_by("cast(value as string)").windowed_by(TEN).aggregate(
        store="s",
        last="last(value)",
    )
    with TopologyTestDriver(pipeline) as driver:
        for time in (1_000_000, 500_000, 1_000_001):
            driver.pipe("clicks", {"n": 0, "more": [*range(count)]}, key="a", timestamp=time)
        driver.pipe("clicks", {"n": 0, "more": []}, key="a", timestamp=500_000)
        counts = driver.counts()
    assert [counts[name] for name in ("read", "applied", "late_everywhere", "filtered")] == [
        4,
        2,
        1,
        1,
    ]
    assert counts["late/s"] == count


@pytest.mark.parametrize(
    "kind",
    ["group", "operator", "sliding", "session", "suppress", "latest", "another key"],
)
def test_a_record_without_a_key_is_dropped_by_every_kind_of_store(kind: str) -> None:
    records: list[Record] = [ON_TIME, (None, 2, 1_000_000)]
    expected = {"applied": 2} if kind == "another key" else {"applied": 1, "dropped/null_key": 1}
    assert outcomes(build(kind), records) == expected


def test_a_repeated_record_is_dropped() -> None:
    records = [("a", 1, 1_000_000), ("b", 1, 1_000_001), ("c", 2, 1_000_002)]
    assert outcomes(build("deduplicate"), records) == {"applied": 2, "dropped/duplicate": 1}
    assert outcomes(build("deduplicate", "latest"), records) == {"applied": 3}


def test_a_record_in_no_window_is_dropped() -> None:
    assert outcomes(build("own windows"), [("a", 1, 700_000), ("a", 1, 700_001)]) == {
        "applied": 1,
        "dropped/no_window": 1,
    }


def test_a_record_on_which_an_operator_fails_is_rejected() -> None:
    records = [("a", 1, 1_000_000), ("a", 0, 1_000_000)]
    assert outcomes(build("fails"), records) == {"applied": 1, "dead_letter/processing": 1}
    assert outcomes(build("fails", "latest"), records) == {"applied": 2}


KINDS = st.sampled_from([*STEPS])
RECORDS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(-2, 3), st.integers(0, 40_000)),
    min_size=1,
    max_size=40,
)


@given(
    RECORDS,
    st.lists(KINDS, min_size=1, max_size=3, unique=True),
    st.randoms(use_true_random=False),
)
def test_outcomes_depend_neither_on_batches_nor_on_workers(
    records: list[Record],
    kinds: list[str],
    chance: random.Random,
) -> None:
    cut = chance.randint(0, len(records))
    whole = outcomes(build(*kinds), records)
    assert outcomes(build(*kinds), records[:cut], records[cut:]) == whole
    assert outcomes(build(*kinds, workers=3), records) == whole


def applied_records(pipeline: Pipeline, records: list[Record]) -> set[int]:
    """The numbers of the records that the pipeline applies, with a batch for each record."""
    applied: set[int] = set()
    with TopologyTestDriver(pipeline) as driver:
        for number, (key, n, time) in enumerate(records):
            driver.pipe("clicks", {"n": n}, key=key, timestamp=time)
            if driver.counts().get("applied", 0) > len(applied):
                applied.add(number)
    return applied


@given(
    RECORDS.map(lambda records: records[:12]),
    st.lists(KINDS, min_size=2, max_size=3, unique=True),
)
def test_a_record_is_applied_if_any_of_several_steps_applies_it(
    records: list[Record],
    kinds: list[str],
) -> None:
    by_any: set[int] = set()
    for kind in kinds:
        by_any |= applied_records(build(kind), records)
    assert outcomes(build(*kinds), records)["applied"] == len(by_any)
