"""A record for which a step fails becomes a dead letter with position and error, and changes nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, Serde, Stream, session, tumbling
from sluice.engine.publish.max_failures import LEAST_REJECTED
from sluice.errors import EngineError, RecordsRejected
from sluice.state.ledger.failures import Failure
from sluice.testing import TopologyTestDriver
from sluice.values.record_metadata import OnError
from tests.pipelines.conftest import Drive


class Click(Struct):
    page: str
    seconds: int


def per_click(click: Click) -> float:
    return 60 / click.seconds


def test_a_record_for_two_stores_is_rejected_once(drive: Drive) -> None:
    pipeline = Pipeline("twice", workers=1)
    clicks = pipeline.stream("clicks", value=Click)
    rates = clicks.map_values(per_click, returns=float).group_by_key()
    rates.aggregate(store="fastest", rate="max(value)")
    rates.windowed_by(session("1 minute")).count(store="visits")
    driver = drive(pipeline)
    driver.pipe("clicks", b"{", key="a", timestamp=0)
    driver.pipe("clicks", {"page": "a", "seconds": 0}, key="a", timestamp=1_000)
    driver.pipe("clicks", {"page": "a", "seconds": 30}, key="a", timestamp=2_000)
    assert sorted(letter.headers["sluice.reason"] for letter in driver.dead_letters()) == [
        "malformed",
        "processing",
    ]
    assert driver.store("fastest") == {"a": {"rate": 2.0}}
    assert driver.store("visits") == {("a", 2_000, 2_000): 1}
    assert driver.counts()["dead_letter/malformed"] == 1


class Reading(Struct):
    """A measurement of a sensor."""

    value: int


BROKEN = 13


def checked(value: int) -> int:
    if value == BROKEN:
        raise ValueError(f"{value} is broken")
    return value


def added(so_far: Reading, reading: Reading) -> Reading:
    return Reading(so_far.value + checked(reading.value))


def listed(so_far: list[int], reading: Reading) -> list[int]:
    so_far.append(reading.value)
    checked(reading.value)
    return so_far


def unlisted(so_far: list[int], reading: Reading) -> list[int]:
    so_far.remove(reading.value)
    checked(reading.value + 1)
    return so_far


def both(one: list[int], other: list[int]) -> list[int]:
    one.extend(other)
    checked(sum(one))
    return one


class Sensor:
    """Adds a sensor's readings, forwards the sum, and sets a timer of each clock."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        total = self.context.store("total").get("sum", 0) + record.value.value
        self.context.store("total").put("sum", total)
        self.context.forward(record.key, total)
        checked(record.value.value)
        clock = {21: "event", 22: "wall"}.get(record.value.value)
        if clock:
            self.context.schedule(clock, record.time + 1, clock=clock)

    def on_timer(self, timer: Any) -> None:
        self.context.store("total").put("sum", -1)
        self.context.forward(timer.key, -1)
        raise KeyError(timer.name)


def encoded(value: dict[str, int]) -> bytes:
    return str(checked(value["value"])).encode()


def sensors(name: str, on_error: OnError = "dead_letter", max_failures: float = 0.5) -> Pipeline:
    pipeline = Pipeline(name, workers=2, on_error=on_error, max_failures=max_failures)
    readings = pipeline.stream("readings", value=Reading)
    readings.to("copies", value=Serde(Reading, encode=encoded))
    by_sensor = readings.group_by_key()
    by_sensor.reduce(added, store="reduced")
    by_sensor.aggregate(list, listed, store="listed", returns=list[int])
    by_sensor.windowed_by(tumbling("1 second")).aggregate(
        list, listed, store="of_second", returns=list[int]
    )
    by_sensor.windowed_by(session("500 ms")).aggregate(
        list, listed, merger=both, store="visits", returns=list[int]
    )
    add_table(pipeline)
    add_sensor(pipeline, readings)
    return pipeline


def add_table(pipeline: Pipeline) -> None:
    table = pipeline.table("states", value=Reading)
    table.group_by("'all'").aggregate(
        list, listed, unlisted, store="states_listed", returns=list[int]
    )


def add_sensor(pipeline: Pipeline, readings: Stream[Reading]) -> None:
    readings.process(Sensor, stores={"total": int}, returns=int).output.to("totals")


STORES = ("reduced", "listed", "of_second", "visits", "states", "states_listed")


def seen(driver: TopologyTestDriver) -> dict[str, Any]:
    topics = {
        topic: [(record.key, record.value) for record in driver.output(topic)]
        for topic in ("copies", "totals")
    }
    return {store: driver.store(store) for store in STORES} | topics


GOOD = [("a", 1, 0), ("b", 2, 100), ("a", 3, 200), ("b", 4, 300)]


@pytest.mark.parametrize(
    ("on_error", "apart"),
    [("dead_letter", False), ("skip", True)],
    ids=["dead letters, one batch", "skip, in a batch"],
)
def test_a_failing_record_does_not_affect_the_others(
    drive: Drive, on_error: OnError, apart: bool
) -> None:
    good, bad = drive(sensors("good")), drive(sensors("bad", on_error))
    for number, (key, value, time) in enumerate(GOOD):
        if number == 2:
            if apart:
                bad.commit()
            bad.pipe("readings", {"value": BROKEN}, "a", timestamp=150)
            bad.pipe("states", {"value": BROKEN}, "a", timestamp=150)
            if apart:
                bad.commit()
        for driver in (good, bad):
            driver.pipe("readings", {"value": value}, key, timestamp=time)
            driver.pipe("states", {"value": value}, key + str(value), timestamp=time)
    assert seen(bad) == seen(good) | {"states": good.store("states") | {"a": {"value": BROKEN}}}
    counts = {
        name: number
        for name, number in bad.counts().items()
        if name.startswith(("failed/", "unwritten/"))
    }
    steps = ("reduced", "listed", "of_second", "visits", "states_listed", "process-9")
    assert counts == {"unwritten/copies": 1} | {f"failed/{step}": 1 for step in steps}
    assert len(bad.dead_letters()) == (len(counts) if on_error == "dead_letter" else 0)


def test_a_dead_letter_names_step_line_key_and_error(drive: Drive) -> None:
    driver = drive(sensors("said"))
    driver.pipe("readings", {"value": 1}, "a", timestamp=0)
    driver.pipe("readings", {"value": BROKEN}, "a", timestamp=1_700_000_000_000)
    letters = {
        dead_letter.headers.get(
            "sluice.step", dead_letter.headers.get("sluice.output")
        ): dead_letter
        for dead_letter in driver.dead_letters()
    }
    letter = letters["store reduced"]
    assert (letter.key, letter.value) == ("a", {"value": BROKEN})
    at = letter.headers.pop("sluice.at")
    assert at.startswith("test_dead_letters.py:")
    assert letter.headers == {
        "sluice.reason": "processing",
        "sluice.detail": "ValueError: 13 is broken",
        "sluice.step": "store reduced",
        "sluice.key": "a",
        "sluice.topic": "readings",
        "sluice.partition": "0",
        "sluice.offset": "1",
        "sluice.timestamp": "2023-11-14T22:13:20+00:00",
    }
    assert letters.keys() == {"copies", "process Sensor", *(f"store {name}" for name in STORES[:4])}
    assert letters["copies"].headers["sluice.detail"] == "ValueError: 13 is broken"


def test_failing_timers_of_both_clocks_are_dead_letters_and_count_as_fired(drive: Drive) -> None:
    pipeline = Pipeline("timers", workers=2)
    add_sensor(pipeline, pipeline.stream("readings", value=Reading))
    driver = drive(pipeline)
    driver.pipe("readings", {"value": 21}, "event", timestamp=0)
    driver.pipe("readings", {"value": 22}, "wall", timestamp=100)
    driver.pipe("readings", {"value": 1}, "event", timestamp=200)
    driver.commit()
    driver.advance(1_000)
    driver.pipe("readings", {"value": 1}, "wall", timestamp=300)
    timers = [one for one in driver.dead_letters() if "sluice.timer" in one.headers]
    said = {
        (one.key, one.headers["sluice.timer"], one.headers["sluice.detail"], one.value)
        for one in timers
    }
    assert said == {
        ("event", "event", "KeyError: 'event'", None),
        ("wall", "wall", "KeyError: 'wall'", None),
    }
    assert len(timers) == 2
    assert [(one.key, one.value) for one in driver.output("totals")] == [
        ("event", 21), ("wall", 22), ("event", 22), ("wall", 23),
    ]  # fmt: skip


def test_a_change_of_a_table_within_a_group_is_atomic(drive: Drive) -> None:
    pipeline = Pipeline("changes", workers=2)
    add_table(pipeline)
    driver = drive(pipeline)
    for value in (
        1,
        BROKEN - 1,
        5,
    ):  # the aggregate never subtracts the value that it could not add
        driver.pipe("states", {"value": value}, "a", timestamp=value)
    driver.pipe("states", {"value": 2}, "b", timestamp=20)
    assert driver.store("states_listed") == {"all": [BROKEN - 1, 2]}
    assert [dead_letter.value for dead_letter in driver.dead_letters()] == [{"value": 5}]


def test_a_value_that_was_not_added_is_not_subtracted(drive: Drive) -> None:
    pipeline = Pipeline("replaced", workers=2)
    add_table(pipeline)
    driver = drive(pipeline)
    for key, value in (("a", 1), ("b", BROKEN), ("a", BROKEN), ("a", 2), ("b", 3)):
        driver.pipe("states", {"value": value}, key, timestamp=0)
        driver.commit()
    assert driver.store("states_listed") == {"all": [2, 3]}
    assert [dead_letter.key for dead_letter in driver.dead_letters()] == ["all", "all"]


@pytest.mark.parametrize("store", ["reduce", "process"])
def test_fail_ends_the_run_with_step_line_and_key(drive: Drive, store: str) -> None:
    pipeline = Pipeline(f"ends_at_{store}", workers=1)
    readings = pipeline.stream("readings", value=Reading)
    if store == "reduce":
        readings.group_by_key().reduce(added, store="reduced", on_error="fail")
    else:
        readings.process(Sensor, stores={"total": int}, returns=int, on_error="fail").output.to(
            "totals"
        )
    driver = drive(pipeline)
    driver.pipe("readings", {"value": 1}, "a", timestamp=0)
    driver.commit()
    driver.pipe("readings", {"value": BROKEN}, "a", timestamp=1)
    with pytest.raises(
        EngineError, match=r"test_dead_letters.py:\d+ failed for key 'a': ValueError: 13 is broken"
    ):
        driver.commit()


@pytest.mark.parametrize(
    ("limit", "bad", "ends"),
    [
        (3, 4, True),
        (0, 1, True),
        (0.5, 99, False),
        (0.5, 100, True),
        (0.0, 99, False),
        (0.0, 100, True),
    ],
)
def test_a_step_that_fails_too_often_ends_the_run(
    drive: Drive, limit: float, bad: int, ends: bool
) -> None:
    pipeline = Pipeline("limited", workers=1, max_failures=limit)
    pipeline.stream("readings", value=Reading).group_by_key().reduce(added, store="reduced")
    driver = drive(pipeline)
    for number in range(bad + 60):
        driver.pipe(
            "readings", {"value": BROKEN if 0 < number <= bad else 1}, "a", timestamp=number
        )
    if ends:
        said = (
            rf"store reduced at .*py:\d+ failed for {bad} of the {bad + 60} records .* "
            r"The first error: ValueError: 13"
        )
        with pytest.raises(EngineError, match=said):
            driver.commit()
        assert driver._run.output.records == {}
    else:
        assert driver.store("reduced") == {"a": {"value": 60}}


@pytest.mark.parametrize(
    ("on_error", "limit", "bad", "ends"),
    [
        ("dead_letter", 0.5, 120, True),
        ("skip", 0.5, 120, True),
        ("dead_letter", 0.5, 99, False),
        ("dead_letter", 3, 4, True),
        ("dead_letter", 1.0, 120, False),
    ],
)
def test_a_flood_of_unreadable_records_ends_the_run(
    drive: Drive, on_error: OnError, limit: float, bad: int, ends: bool
) -> None:
    pipeline = Pipeline("flooded", workers=1, on_error=on_error, max_rejected=limit)
    pipeline.stream("readings", value=Reading).group_by_key().count(store="counted")
    driver = drive(pipeline)
    for number in range(bad + 60):
        driver.pipe(
            "readings", {"value": "text"} if number < bad else {"value": 1}, "a", timestamp=number
        )
    if ends:
        with pytest.raises(
            RecordsRejected, match=rf"^{bad} of the {bad + 60} records .*contract: {bad}"
        ) as ended:
            driver.commit()
        assert "max_rejected" in ended.value.next_step
    else:
        assert driver.store("counted") == {"a": 60}


@pytest.mark.parametrize(
    ("limit", "bad", "ends"),
    [
        (0.5, 1, False),
        (0.5, 60, False),
        (0.5, 99, False),
        (0.5, 100, True),
        (20, 20, False),
        (20, 21, True),
    ],
)
def test_a_batch_of_invalid_records_only_ends_the_run_if_it_has_enough(
    drive: Drive, limit: float, bad: int, ends: bool
) -> None:
    pipeline = Pipeline("invalid", workers=1, max_rejected=limit)
    pipeline.stream("readings", value=Reading).group_by_key().count(store="counted")
    driver = drive(pipeline)
    for number in range(bad):
        driver.pipe("readings", {"value": "text"}, "a", timestamp=number)
    if ends:
        with pytest.raises(RecordsRejected, match=f"^{bad} of the {bad} records"):
            driver.commit()
    else:
        assert len(driver.dead_letters()) == bad
    kinds = [failure.kind for failure in driver._run._ledger.failures.all()]
    assert kinds == ["rejections"] * (bad >= 10 and not ends), "the pipeline is degraded"


def test_the_docs_say_how_many_records_may_always_be_rejected() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "dead-letters.md"
    said = f"only if at least {LEAST_REJECTED} records"
    for text in (Pipeline.__doc__ or "", page.read_text()):
        assert said in " ".join(text.split())


def test_a_pipeline_with_many_rejected_records_is_degraded_until_a_batch_has_few(
    drive: Drive,
) -> None:
    pipeline = Pipeline("degraded", workers=1)
    pipeline.stream("readings", value=Reading).group_by_key().count(store="counted")
    driver = drive(pipeline)

    def degraded() -> list[Failure]:
        return [
            failure
            for failure in driver._run._ledger.failures.all()
            if failure.kind == "rejections"
        ]

    for bad, good, expected in ((9, 40, 0), (20, 200, 1), (20, 500, 0), (50, 60, 1), (0, 1, 0)):
        for number in range(bad + good):
            driver.pipe("readings", {"value": "text"} if number < bad else {"value": 1}, "a")
        driver.commit()
        assert len(degraded()) == expected
        if bad == 50:
            (failure,) = degraded()
            assert failure.detail.startswith(
                "50 records of the newest batch's 110 were rejected. contract: 50, for example"
            )
            assert "dead letters" in failure.next_step
