"""Functions that call out of the pipeline: `call`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from threading import Event
from typing import Any

import pytest
from msgspec import Struct
from pyspark.sql import SparkSession

from sluice import Pipeline
from sluice.errors import RecordsRejected, SluiceError, TopologyError
from sluice.state.remote.opening import open_shard
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive


class Order(Struct):
    """An order of a customer."""

    customer: str
    amount: int


class Score(Struct):
    """How risky an order is."""

    customer: str
    risk: int


CALLS: Counter[str] = Counter()
"""Customer → the calls so far, in this process."""


@pytest.fixture
def in_this_process(session: SparkSession | None) -> None:
    """Skips a test that counts calls if Spark's workers make them."""
    if session is not None:
        pytest.skip("Spark's workers make the calls")
    CALLS.clear()


async def score(order: Order) -> Score:
    """A model that answers small orders later than large ones."""
    CALLS[order.customer] += 1
    await asyncio.sleep(0.02 if order.amount < 5 else 0)
    if order.customer == "Mallory":
        raise ConnectionError("refused")
    return Score(order.customer, order.amount * 2)


def score_slowly(key: str, order: Order) -> Score:
    """The same with a client that blocks."""
    CALLS[order.customer] += 1
    time.sleep(0.02 if order.amount < 5 else 0)
    if order.customer == "Mallory":
        raise ConnectionError("refused")
    return Score(order.customer, order.amount * 2)


QUICKLY = {"backoff": "1 ms", "timeout": "5 seconds"}


def scored(function: Any = score, workers: int = 1, **options: Any) -> Pipeline:
    pipeline = Pipeline("risks", workers=workers)
    orders = pipeline.stream("orders", value=Order, nulls="keep")
    scores = orders.call(function, **{"returns": Score, **QUICKLY, **options})
    scores.to("scores")
    scores.group_by("customer").aggregate(store="risk", risk="sum(risk)")
    return pipeline


def order(customer: str, amount: int) -> dict[str, Any]:
    return {"customer": customer, "amount": amount}


@pytest.mark.parametrize("function", [score, score_slowly])
@pytest.mark.parametrize("workers", [1, 3])
def test_results_keep_the_order_of_the_records(drive: Drive, function: Any, workers: int) -> None:
    driver = drive(scored(function, workers))
    for number in range(40):
        driver.pipe(
            "orders", order(f"c{number % 7}", number % 10), key=f"k{number % 3}", timestamp=number
        )
    driver.pipe("orders", None, key="k0", timestamp=40)
    driver.pipe("orders", order("c1", 9), key=None, timestamp=41)
    results = driver.output("scores")
    for key in ("k0", "k1", "k2"):
        wanted = [(number % 10) * 2 for number in range(40) if f"k{number % 3}" == key]
        risks = [result.value and result.value["risk"] for result in results if result.key == key]
        assert risks == [*wanted, None][: len(risks)]
        assert risks[: len(wanted)] == wanted
    assert [result.value for result in results if result.key is None] == [
        {"customer": "c1", "risk": 18}
    ]


@pytest.mark.usefixtures("in_this_process")
def test_a_call_that_fails_is_repeated_and_then_rejected(drive: Drive) -> None:
    driver = drive(scored(retries=2))
    driver.pipe("orders", order("Mallory", 7), key="m", timestamp=0)
    driver.pipe("orders", order("Alice", 1), key="a", timestamp=1)
    assert [result.key for result in driver.output("scores")] == ["a"]
    (letter,) = driver.dead_letters()
    assert letter.headers["sluice.detail"] == "ConnectionError: refused"
    assert letter.headers["sluice.step"] == "call"
    assert letter.value == order("Mallory", 7)
    assert CALLS == {"Mallory": 3, "Alice": 1}


@pytest.mark.parametrize(
    ("otherwise", "wanted"),
    [(Score("nobody", -1), {"customer": "nobody", "risk": -1}), (None, None)],
)
def test_a_record_whose_call_fails_gets_another_value(
    drive: Drive, otherwise: Any, wanted: Any
) -> None:
    driver = drive(scored(otherwise=otherwise, retries=0))
    driver.pipe("orders", order("Mallory", 7), key="m", timestamp=0)
    assert [result.value for result in driver.output("scores")] == [wanted]
    assert driver.counts()["otherwise/call-1"] == 1
    assert not driver.dead_letters()


def test_the_run_ends_if_the_author_wants_it(drive: Drive) -> None:
    driver = drive(scored(on_error="fail", retries=0))
    driver.pipe("orders", order("Mallory", 7), key="m", timestamp=0)
    with pytest.raises(SluiceError, match=r"failed for key 'm': ConnectionError: refused"):
        driver.commit()


async def hang(order: Order) -> Score:
    await asyncio.Event().wait()
    raise AssertionError


END = Event()


def hang_in_thread(order: Order) -> Score:
    END.wait(60)
    return Score("late", 0)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("function", [hang, hang_in_thread])
def test_a_hanging_call_is_given_up(drive: Drive, function: Any) -> None:
    END.clear()
    driver = drive(scored(function, timeout="50 ms", retries=1))
    driver.pipe("orders", order("Alice", 7), key="a", timestamp=0)
    (letter,) = driver.dead_letters()
    END.set()
    assert letter.headers["sluice.detail"] == "TimeoutError: no result within 50 ms"


@pytest.mark.usefixtures("in_this_process")
def test_too_many_hanging_threads_end_the_run(drive: Drive) -> None:
    END.clear()
    driver = drive(scored(hang_in_thread, timeout="20 ms", retries=0, concurrency=2))
    for number in range(3):
        driver.pipe("orders", order("Alice", number), key="a", timestamp=number)
    with pytest.raises(SluiceError, match=r"2 calls did not end within 20 ms and still hang"):
        driver.commit()
    END.set()


async def leave(order: Order) -> Score:
    sys.exit(3)


def leave_in_thread(order: Order) -> Score:
    sys.exit(3)


def stop(order: Order) -> Score:
    raise StopIteration


def wrong(order: Order) -> Any:
    return {"customer": 7}


@pytest.mark.parametrize(
    ("function", "detail"),
    [
        (leave, "RuntimeError: the function tried to end the process: SystemExit: 3"),
        (leave_in_thread, "RuntimeError: the function tried to end the process: SystemExit: 3"),
        (stop, "RuntimeError: the function raised StopIteration"),
        (wrong, "ValidationError: Expected `str`, got `int` - at `$.customer`"),
    ],
)
def test_whatever_a_function_does_rejects_only_its_record(
    drive: Drive, function: Any, detail: str
) -> None:
    driver = drive(scored(function, retries=0))
    driver.pipe("orders", order("Alice", 7), key="a", timestamp=0)
    (letter,) = driver.dead_letters()
    assert letter.headers["sluice.detail"] == detail


SIZES: list[int] = []
"""The number of values of each call."""


async def score_many(orders: list[Order]) -> list[Score]:
    """A model that takes many orders, and none of Mallory's."""
    SIZES.append(len(orders))
    if any(order.customer == "Mallory" for order in orders):
        raise ConnectionError("refused")
    return [Score(order.customer, order.amount * 2) for order in orders]


def score_many_slowly(orders: list[Order]) -> list[Score]:
    SIZES.append(len(orders))
    if any(order.customer == "Mallory" for order in orders):
        raise ConnectionError("refused")
    return [Score(order.customer, order.amount * 2) for order in orders]


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("function", [score_many, score_many_slowly])
def test_a_call_takes_many_values(drive: Drive, function: Any) -> None:
    SIZES.clear()
    driver = drive(scored(function, size=4, retries=1, concurrency=2))
    for number in range(10):
        customer = "Mallory" if number == 5 else "Alice"
        driver.pipe("orders", order(customer, number), key="a", timestamp=number)
    risks = [result.value["risk"] for result in driver.output("scores")]
    assert risks == [number * 2 for number in range(10) if number != 5]
    assert len(driver.dead_letters()) == 1
    # The list with Mallory's order is called twice, and then each of its four values alone.
    assert sorted(SIZES) == [1, 1, 1, 1, 1, 2, 4, 4, 4]


def test_a_call_of_many_values_needs_a_result_per_value(drive: Drive) -> None:
    driver = drive(scored(lambda orders: [], size=4, answers="none"))
    driver.pipe("orders", order("Alice", 1), key="a", timestamp=0)
    with pytest.raises(SluiceError, match="gave its function 1 value and got 0 results back"):
        driver.commit()


async def interrupt(order: Order) -> Score:
    raise KeyboardInterrupt


def test_an_interrupted_function_ends_the_run_and_later_calls_go_on(drive: Drive) -> None:
    driver = drive(scored(interrupt))
    driver.pipe("orders", order("Alice", 7), key="a", timestamp=0)
    with pytest.raises(SluiceError, match="raised KeyboardInterrupt"):
        driver.commit()
    driver = drive(scored())
    driver.pipe("orders", order("Alice", 7), key="a", timestamp=0)
    assert len(driver.output("scores")) == 1


def test_a_lambda_that_returns_a_coroutine_is_awaited(drive: Drive) -> None:
    driver = drive(scored(lambda order: score(order), answers="scores"))
    driver.pipe("orders", order("Alice", 7), key="a", timestamp=0)
    assert [result.value["risk"] for result in driver.output("scores")] == [14]


def test_calls_follow_windows_and_joins(drive: Drive) -> None:
    """Behind a windowed table, the function gets the windowed key, and the results keep the window."""
    from sluice import tumbling

    pipeline = Pipeline("windows", workers=2)
    orders = pipeline.stream("orders", value=Order)
    totals = (
        orders.group_by("customer")
        .windowed_by(tumbling("10 ms"))
        .aggregate(store="totals", total="sum(amount)")
    )

    async def label(key: Any, total: dict[str, Any]) -> str:
        return f"{key.key} {key.start_ms} {total['total']}"

    labels = totals.to_stream().call(label, returns=str)
    labels.select(label="value", since="_window_start").to("labels")
    driver = drive(pipeline)
    for at in (1, 2, 11):
        driver.pipe("orders", order("Alice", at), timestamp=at)
    assert [result.value["label"] for result in driver.output("labels")] == [
        "Alice 0 1",
        "Alice 0 3",
        "Alice 10 11",
    ]


async def many(order: Order) -> Any:
    yield order


@pytest.mark.parametrize(
    ("function", "options", "error"),
    [
        ("amount * 2", {}, "expected a function of"),
        (many, {}, "many is an async generator"),
        (
            lambda order: None,
            {},
            "the function has no name under which its answers can be recorded",
        ),
        (score_many, {"size": 0}, "size is 0"),
        (lambda: [], {"size": 5}, r"must take \(values\)"),
        (score, {"concurrency": 0}, "concurrency is 0"),
        (score, {"concurrency": 5_000}, "at most 1000"),
        (score, {"retries": -1}, "retries is -1"),
        (score, {"timeout": "0 s"}, "timeout in ms is 0"),
        (score, {"timeout": 5}, "5 at .* is not a duration"),
        (
            score,
            {"otherwise": {"customer": 1}},
            "otherwise=.* is not of the type that returns= declares",
        ),
        (score, {"answers": "a b"}, "not a valid answers name"),
        (lambda: None, {}, r"must take \(value\) or \(key, value\)"),
    ],
)
def test_wrong_uses_are_errors_of_the_file(
    function: Any, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(TopologyError, match=error):
        scored(function, **options)


@pytest.mark.usefixtures("in_this_process")
def test_equal_rows_of_a_record_share_a_call(drive: Drive) -> None:
    pipeline = Pipeline("parts")
    orders = pipeline.stream("orders", value=Order)
    orders.flat_map_values(lambda order: [order, order], returns=Order).call(
        score, returns=Score
    ).to("scores")
    driver = drive(pipeline)
    driver.pipe("orders", order("Alice", 1), key="a", timestamp=0)
    driver.pipe("orders", order("Alice", 1), key="a", timestamp=0)
    assert len(driver.output("scores")) == 4
    assert CALLS["Alice"] == 2


def test_two_steps_need_names_of_their_own() -> None:
    pipeline = Pipeline("twice")
    orders = pipeline.stream("orders", value=Order)
    orders.call(score, returns=Score)
    with pytest.raises(TopologyError, match=r"answers 'score'"):
        orders.call(score, returns=Score)


def test_map_values_names_the_step_for_async_functions() -> None:
    with pytest.raises(TopologyError, match=r"score is async. .*pass it to call"):
        Pipeline("async").stream("orders", value=Order).map_values(score)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("keep", "calls"), [("7 days", 30), (None, 60)])
def test_a_repeated_batch_calls_only_for_records_without_a_recorded_answer(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, keep: str | None, calls: int
) -> None:
    """The driver ends before it publishes a batch.

    The next run removes the batch's rows, and repeats it.
    """
    driver = drive(scored(retries=0, workers=2, keep=keep))
    for number in range(30):
        customer = "Mallory" if number == 7 else f"c{number}"
        driver.pipe("orders", order(customer, number), key=f"k{number % 5}", timestamp=number)
    run, records = driver._run, list(driver._waiting)
    with monkeypatch.context() as patch:
        patch.setattr(run, "publish", end_before_publishing)
        with pytest.raises(InterruptedError):
            driver.commit()
    assert CALLS.total() == 30
    for location in run.storage.locations:
        with open_shard(location, to_write=True) as shard:
            shard.begin_run(run.lease.epoch, -1)
    monkeypatch.setattr(run, "_failed", None)
    monkeypatch.setattr(driver, "_waiting", records)
    driver.commit()
    assert CALLS.total() == calls
    assert len(driver.output("scores")) == 29
    assert [letter.headers["sluice.detail"] for letter in driver.dead_letters()] == [
        "ConnectionError: refused"
    ]


@pytest.mark.usefixtures("in_this_process")
def test_an_outage_of_the_service_is_forgotten_with_its_batch(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends, because too many calls have failed.

    The next run calls again for these records only.
    """
    driver = drive(scored(refuse_first, retries=0, concurrency=100))
    for number in range(200):
        driver.pipe("orders", order("Alice", number), key="a", timestamp=number)
    records = list(driver._waiting)
    with pytest.raises(RecordsRejected, match="ConnectionError: down"):
        driver.commit()
    assert CALLS.total() == 200
    monkeypatch.setattr(driver._run, "_failed", None)
    monkeypatch.setattr(driver, "_waiting", records)
    assert len(driver.output("scores")) == 200
    assert CALLS.total() == 350


async def refuse_first(order: Order) -> Score:
    """A service that is down for the first 150 calls."""
    CALLS[order.customer] += 1
    if CALLS.total() <= 150:
        raise ConnectionError("down")
    return Score(order.customer, order.amount)


def end_before_publishing(rows: Any) -> None:
    """Write the rows to the shards, as publishing does first, and fail."""
    rows.write()
    raise InterruptedError


@pytest.mark.usefixtures("in_this_process")
def test_answers_that_are_not_recorded_are_asked_for_again(drive: Drive) -> None:
    driver = drive(scored(keep=None))
    driver.pipe("orders", order("Alice", 1), key="a", timestamp=0)
    driver.commit()
    with open_shard(driver._run.storage.locations[0]) as shard:
        assert shard.answers(None, 10) == []


@pytest.mark.usefixtures("in_this_process")
def test_answers_are_forgotten(drive: Drive) -> None:
    driver = TopologyTestDriver(scored(keep="1 hour"), clock=0)
    with driver:
        for hour in range(4):
            driver.pipe("orders", order("Alice", hour), key="a", timestamp=0)
            driver.commit()
            driver.advance(1_800_000)
        with open_shard(driver._run.storage.locations[0]) as shard:
            assert [answer.at for answer in shard.answers(None, 10)] == [
                1_800_000,
                3_600_000,
                5_400_000,
            ]


@pytest.mark.usefixtures("in_this_process")
def test_two_records_that_are_equal_are_two_calls(drive: Drive) -> None:
    driver = drive(scored())
    for _ in range(3):
        driver.pipe("orders", order("Alice", 1), key="a", timestamp=0)
    assert len(driver.output("scores")) == 3
    assert CALLS["Alice"] == 3
