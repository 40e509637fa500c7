"""A function that ends its Python worker, or raises what is no error of a record, ends the run with a clear message."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import pytest
from msgspec import Struct
from pyspark.sql import SparkSession

from sluice import Context, Pipeline, Record, Serde, Stream
from sluice.errors import EngineError, RecordsRejected
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive


class Task(Struct):
    """`how` names an exception to raise, or a way to end the process."""

    how: str


ENDS: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(3),
    "crash": lambda: ctypes.string_at(0),
}
RAISES = {
    error.__name__: error
    for error in (KeyboardInterrupt, GeneratorExit, BaseException, MemoryError)
}


def carry_out(how: str) -> None:
    if how in RAISES:
        raise RAISES[how]("stop")
    ENDS.get(how, int)()


def mapped(task: Task) -> str:
    carry_out(task.how)
    return task.how


def added(so_far: int, task: Task) -> int:
    carry_out(task.how)
    return so_far + 1


class Worker:
    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        carry_out(record.value.how)


def decoded(data: bytes) -> str:
    carry_out(data.decode())
    return data.decode()


def encoded(value: str) -> bytes:
    carry_out(value)
    return value.encode()


def by_mapping(tasks: Stream[Task]) -> None:
    tasks.map_values(mapped, returns=str).to("mapped")


def by_adding(tasks: Stream[Task]) -> None:
    tasks.group_by_key().aggregate(int, added, store="added", returns=int)


def by_process(tasks: Stream[Task]) -> None:
    tasks.process(Worker, stores={"seen": int})


def by_encoder(tasks: Stream[Task]) -> None:
    tasks.map_values("how").to("encoded", value=Serde(str, encode=encoded))


PLACES: dict[Callable[[Stream[Task]], None], str] = {
    by_mapping: r"Python function for value at test_ended_functions\.py:\d+ failed for key 'a'",
    by_adding: r"store added at test_ended_functions\.py:\d+ failed for key 'a'",
    by_process: r"process Worker at test_ended_functions\.py:\d+ failed for key 'a'",
    by_encoder: r"The encoder of encoded at test_ended_functions\.py:\d+ failed for \"",
}
CASES = [
    (by_mapping, "KeyboardInterrupt"), (by_mapping, "MemoryError"), (by_adding, "GeneratorExit"),
    (by_adding, "MemoryError"), (by_process, "BaseException"), (by_process, "MemoryError"),
    (by_encoder, "KeyboardInterrupt"), (by_encoder, "MemoryError"),
]  # fmt: skip
RETRY = r"Nothing from the batch was published\."


@pytest.mark.parametrize(("build", "how"), CASES)
def test_an_exception_that_is_no_error_of_a_record_ends_the_run_and_is_named(
    drive: Drive, build: Callable[[Stream[Task]], None], how: str
) -> None:
    pipeline = Pipeline(f"raises_{how.lower()}_{build.__name__}", workers=1)
    build(pipeline.stream("tasks", value=Task))
    driver = drive(pipeline)
    driver.pipe("tasks", {"how": how}, "a", timestamp=0)
    where = r"\(test_ended_functions\.py:\d+, in carry_out\)"
    said = rf"^{PLACES[build]}.*{how}: stop {where}\. {RETRY} (?!.*rebuild)"
    with pytest.raises(EngineError, match=said):
        driver.commit()


@pytest.mark.parametrize("which", ["value", "key"])
def test_an_exception_of_a_decoder_ends_the_run_and_is_named(drive: Drive, which: str) -> None:
    pipeline = Pipeline(f"decodes_{which}", workers=1)
    value, key = (Serde(str, decode=decoded), None) if which == "value" else (str, decoded)
    pipeline.stream("words", value=value, key=key).group_by_key().count(store="n")
    driver = drive(pipeline)
    driver.pipe("words", "MemoryError", "MemoryError", timestamp=0)
    said = rf"^The (key )?decoder of words failed for .*: MemoryError: stop .* in carry_out\)\. {RETRY} Use less memory"
    with pytest.raises(EngineError, match=said):
        driver.commit()


@pytest.mark.parametrize("how", ENDS)
def test_a_worker_that_a_function_ends_is_reported_with_the_steps_that_call_functions(
    spark: SparkSession, how: str
) -> None:
    pipeline = Pipeline(f"ends_{how}", workers=1)
    tasks = pipeline.stream("tasks", value=Task)
    by_mapping(tasks)
    by_adding(tasks)
    at = r"test_ended_functions\.py:\d+"
    steps = rf" while it ran one of these steps: Python function for value at {at}, store added at {at}\."
    where = steps if how == "exit" else rf" at {at}, in <lambda>\."
    with TopologyTestDriver(pipeline, spark=spark) as driver:
        driver.pipe("tasks", {"how": how}, "a", timestamp=0)
        with pytest.raises(
            EngineError, match=rf"^A Python worker of ends_{how} ended{where} {RETRY} (?!.*rebuild)"
        ):
            driver.commit()


def test_on_spark_too_a_batch_with_many_unreadable_records_ends_the_run_with_its_own_error(
    spark: SparkSession,
) -> None:
    pipeline = Pipeline("flooded", workers=1)
    pipeline.stream("tasks", value=Task).group_by_key().count(store="n")
    with TopologyTestDriver(pipeline, spark=spark) as driver:
        for number in range(120):
            driver.pipe("tasks", {"how": 1}, "a", timestamp=number)
        with pytest.raises(RecordsRejected, match=r"^120 of the 120 records .*contract: 120"):
            driver.commit()
