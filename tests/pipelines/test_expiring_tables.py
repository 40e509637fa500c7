"""Tables whose rows expire: by a time of theirs or a time to live, by stream time or the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, tumbling
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver

NOON = 1_700_006_400_000
MINUTE = 60_000


class Offer(Struct):
    item: str
    price: int
    valid_until: datetime | None = None


class Login(Struct):
    user: str
    expires: int = 0


Drive = Callable[..., TopologyTestDriver]
cuts = pytest.mark.parametrize("cut", [False, True], ids=["one batch", "each"])


@pytest.fixture
def drive() -> Iterator[Drive]:
    drivers: list[TopologyTestDriver] = []

    def make(pipeline: Pipeline, **partitions: int) -> TopologyTestDriver:
        drivers.append(TopologyTestDriver(pipeline, clock=NOON, partitions=partitions))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.__exit__(None, None, None)


def changes(driver: TopologyTestDriver, topic: str) -> list[Any]:
    return [
        (record.key, record.value, (record.timestamp or 0) - NOON) for record in driver.read(topic)
    ]


def logins(pipeline: Pipeline, **options: Any) -> Any:
    return pipeline.stream("logins", value=Login).to_table(store="logged_in", **options)


@cuts
def test_rows_live_for_a_time_and_their_deletion_reaches_later_steps(
    drive: Drive, cut: bool
) -> None:
    pipeline = Pipeline("logins", workers=2)
    table = logins(pipeline, expires_after="10 seconds")
    table.map_values("user").to("logged_in_changes")
    table.changes().select("kind", user="coalesce(new.user, old.user)").to("kinds")
    table.group_by("'all'").aggregate(
        store="all", users="count(*)", names="collect_sorted(user)"
    ).to("totals")
    pipeline.stream("clicks", value=str).left_join(table).to("clicks_of_users")
    driver = drive(pipeline)
    for topic, key, value, at in [
        ("logins", "a", {"user": "ann"}, 0),
        ("logins", "b", {"user": "bob"}, 3_000),
        ("clicks", "a", "home", 4_000),
        # Bob logs in again, and lives longer.
        ("logins", "b", {"user": "bob"}, 9_000),
        ("logins", "c", {"user": "cid"}, 10_000),
        ("clicks", "a", "cart", 10_500),
        # The row of c has expired when the record of d comes, and d's own old record deletes its
        # key.
        ("logins", "d", {"user": "dan"}, 30_000),
        ("logins", "d", {"user": "old"}, 15_000),
    ]:
        driver.pipe(topic, value, key=key, timestamp=NOON + at)
        if cut:
            driver.commit()
    assert changes(driver, "logged_in_changes") == [
        ("a", "ann", 0), ("b", "bob", 3_000), ("b", "bob", 9_000), ("a", None, 10_000), ("c", "cid", 10_000),
        ("b", None, 19_000), ("c", None, 20_000), ("d", "dan", 30_000), ("d", None, 15_000),
    ]  # fmt: skip
    assert [record.value for record in driver.output("kinds")][3:5] == [
        {"kind": "delete", "user": "ann"}, {"kind": "insert", "user": "cid"},
    ]  # fmt: skip
    assert [record.value["right"] for record in driver.output("clicks_of_users")] == [
        {"user": "ann", "expires": 0},
        None,
    ]
    assert driver.store("all") == {"all": {"users": 0, "names": []}}
    assert driver.store("logged_in") == {}
    assert driver.counts()["expired/logged_in"] == 1


@cuts
def test_rows_expire_at_a_time_of_theirs_in_a_joined_table(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("offers", workers=2)
    offers = pipeline.table("offers", value=Offer, expires_at="valid_until")
    stock = pipeline.table("stock", value=int)
    offers.join(stock).select(price="left.price", left="right").to("available")
    driver = drive(pipeline)
    for topic, key, value, at in [
        ("stock", "tea", 5, 0),
        (
            "offers",
            "tea",
            {"item": "tea", "price": 3, "valid_until": "2023-11-15T00:01:00Z"},
            1_000,
        ),
        ("offers", "pot", {"item": "pot", "price": 9}, 2_000),
        ("stock", "pot", 2, 2_500),
        ("offers", "pot", {"item": "pot", "price": 8}, 60_000),
        ("stock", "tea", 4, 61_000),
    ]:
        driver.pipe(topic, value, key=key, timestamp=NOON + at)
        if cut:
            driver.commit()
    assert changes(driver, "available") == [
        ("tea", {"price": 3, "left": 5}, 1_000), ("pot", {"price": 9, "left": 2}, 2_500),
        ("tea", None, 60_000), ("pot", {"price": 8, "left": 2}, 60_000),
    ]  # fmt: skip
    assert driver.store("offers").keys() == {"pot"}, "a row without a time does not expire"


@cuts
def test_a_suppressed_deletion_is_sent_before_the_next_update(drive: Drive, cut: bool) -> None:
    pipeline = Pipeline("logins", workers=3)
    table = logins(pipeline, expires_after="20 ms")
    table.map_values("user").suppress_until_time_limit("5 ms").to("held")
    table.suppress_until_time_limit("5 ms").map_values("user").to("held_too")
    driver = drive(pipeline)
    # The records of `late` belong to one of the workers, and advance stream time for all of them.
    first, second = ([(key, at) for key in "abcdef"] for at in (30, 71))
    for key, at in [*first, ("late", 40), ("late", 60), *second, ("late", 80)]:
        driver.pipe("logins", {"user": key}, key=key, timestamp=at)
        if cut:
            driver.commit()
    for topic in ("held", "held_too"):
        for key in "abcdef":
            of_key = [
                (record.value, record.timestamp)
                for record in driver.output(topic)
                if record.key == key
            ]
            assert of_key == [(key, 30), (None, 50), (key, 71)]


def test_rows_expire_by_the_wall_clock_without_records(drive: Drive) -> None:
    pipeline = Pipeline("logins", workers=2)
    table = logins(pipeline, expires_at="expires", expiry_clock="wall")
    table.group_by("'all'").count(store="users")
    pipeline.stream("clicks", value=str).left_join(table).select(user="right.user").to(
        "clicks_of_users"
    )
    driver = drive(pipeline)
    driver.pipe("logins", {"user": "ann", "expires": NOON + MINUTE}, key="a", timestamp=NOON)
    driver.pipe("logins", {"user": "bob", "expires": NOON + 9 * MINUTE}, key="b", timestamp=NOON)
    driver.pipe("logins", {"user": "old", "expires": NOON - 1}, key="c", timestamp=NOON)
    assert driver.store("logged_in").keys() == {"a", "b"}
    driver.advance(MINUTE - 1)
    assert driver.store("users") == {"all": 2}
    driver.advance(1)
    assert driver.store("logged_in").keys() == {"b"}
    assert driver.store("users") == {"all": 1}
    # In one batch, rows that have expired are deleted before the batch's records look them up.
    driver._run.clock.advance(8 * MINUTE)
    driver.pipe("clicks", "home", key="b", timestamp=NOON)
    assert [record.value for record in driver.read("clicks_of_users")] == [{"user": None}]
    assert driver.store("users") == {"all": 0}


def test_rows_expire_in_silence_if_stream_time_goes_on(drive: Drive) -> None:
    pipeline = Pipeline("logins", workers=2, advance_when_idle="30 seconds")
    logins(pipeline, expires_after="10 minutes").to("changes")
    driver = drive(pipeline, logins=3)
    driver.pipe("logins", {"user": "ann"}, key="a", timestamp=NOON, partition=2)
    driver.advance(10 * MINUTE)
    assert driver.store("logged_in").keys() == {"a"}
    driver.advance(30_000)
    assert changes(driver, "changes") == [
        ("a", {"user": "ann", "expires": 0}, 0),
        ("a", None, 10 * MINUTE),
    ]
    assert driver.store("logged_in") == {}


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "both": (
        lambda s: s.to_table(store="t", expires_at="expires", expires_after="1 s"),
        "cannot have both",
    ),
    "no time": (
        lambda s: s.to_table(store="t", expires_at="user"),
        "expires_at='user' is STRING, not a time",
    ),
    "an unknown field": (
        lambda s: s.to_table(store="t", expires_at="until"),
        "unknown fields: until",
    ),
    "only a clock": (
        lambda s: s.to_table(store="t", expiry_clock="wall"),
        "needs expires_at= or expires_after=",
    ),
    "no clock": (
        lambda s: s.to_table(store="t", expires_after="1 s", expiry_clock="sun"),
        "expiry_clock='sun'",
    ),
    "at once": (lambda s: s.to_table(store="t", expires_after="0 s"), "expires_after"),
    "versions": (
        lambda s: s.to_table(store="t", expires_after="1 s", versioned="1 s"),
        "the rows of a versioned table cannot expire",
    ),
    "windows": (
        lambda s: (
            s.group_by_key()
            .windowed_by(tumbling("1 s"))
            .count(store="c")
            .to_stream()
            .to_table(store="t", expires_after="1 s")
        ),
        "window",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_mistakes_are_reported(wrong: str) -> None:
    define, message = WRONG[wrong]
    with pytest.raises(TopologyError, match=message):
        define(Pipeline("wrong").stream("logins", value=Login))
