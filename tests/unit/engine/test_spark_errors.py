"""What a run reports when Spark's query fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from sluice.engine.run.query_errors import query_errors
from sluice.errors import BrokersUnreachable, EngineError, LeaseError, OutputError, RecordFailed
from sluice.plan import Step

STEPS = [
    Step(1, "a", "map", "", "orders.py:3", "dead_letter"),
    Step(2, "b", "process Totals", "", "orders.py:9", "fail"),
]
JOB = SimpleNamespace(pipeline=SimpleNamespace(name="orders", steps={}), python_steps=STEPS)
STORAGE: Any = SimpleNamespace(job=JOB, locations=[])
LEASE: Any = SimpleNamespace(require_in_ledger=lambda: None)


def error_of(cause: str) -> str:
    with pytest.raises(EngineError) as error, query_errors(STORAGE, LEASE):
        raise StreamingQueryException(
            f"[STREAM_FAILED] Query terminated with exception: {cause}\nCaused by: {cause}"
        )
    return str(error.value)


def test_a_full_disk_is_named_with_what_to_do() -> None:
    assert error_of("OSError: [Errno 28] No space left on device") == (
        "The query of orders failed: OSError: [Errno 28] No space left on device. A disk is full, for example "
        "the disk with the shards or with temporary files: free some space. "
        "Nothing from the batch was published; the next run retries it."
    )


def test_any_other_error_ends_with_what_the_next_run_does() -> None:
    assert error_of("java.io.IOException: Stream is corrupted.") == (
        "The query of orders failed: java.io.IOException: Stream is corrupted. Nothing from the batch was published; "
        "the next run retries it."
    )


CRASH = """SparkException: Python worker exited unexpectedly (crashed): Fatal Python error: Segmentation fault

Current thread 0x00007f9dc6c51b80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/pipelines/orders.py", line 4 in per_order
  File "/site-packages/sluice/engine/steps/python_calls.py", line 48 in call

Extension modules: msgspec._core (total: 1)

	at org.apache.spark.api.python.BasePythonRunner.applyOrElse(PythonRunner.scala:711)
Caused by: java.io.EOFException"""


def test_a_worker_that_ends_is_named_with_the_functions_that_it_may_have_run() -> None:
    for cause, where in (
        (CRASH, "at orders.py:4, in per_order"),
        (CRASH.replace("orders.py", "library.py"), "at __init__.py:519, in string_at"),
        (
            f"{CRASH.partition('Fatal')[0]}\n\tat java\nCaused by: java.io.EOFException",
            "while it ran one of these steps: map at orders.py:3, process Totals at orders.py:9",
        ),
    ):
        said = error_of(cause)
        assert said.startswith(
            f"A Python worker of orders ended {where}. Nothing from the batch was published. "
        )
        assert "rebuild" not in said


@pytest.mark.parametrize("kind", [EngineError, RecordFailed, BrokersUnreachable])
def test_an_error_that_a_task_raises_keeps_its_kind_and_its_own_next_step(
    kind: type[EngineError],
) -> None:
    raised = "map at orders.py:3 failed for key 'a': KeyboardInterrupt (orders.py:4, in f). Correct the function."
    task = f"Job aborted: Traceback (most recent call last):\nsluice.errors.{kind.__name__}: {raised}\n\tat java"
    assert error_of(task) == raised
    with pytest.raises(kind), query_errors(STORAGE, LEASE):
        raise StreamingQueryException(f"[STREAM_FAILED] Query terminated with exception: {task}")


def test_an_error_of_publishing_is_raised_in_place_of_sparks() -> None:
    refused = OutputError("The broker has refused the output.")
    with pytest.raises(OutputError) as raised, query_errors(STORAGE, LEASE):
        raise StreamingQueryException("[STREAM_FAILED] refused") from refused
    assert raised.value is refused


def test_a_lost_lease_is_the_cause_of_an_error_of_publishing() -> None:
    def lost() -> None:
        raise LeaseError("This driver has lost its lease.")

    with pytest.raises(LeaseError), query_errors(STORAGE, SimpleNamespace(require_in_ledger=lost)):  # type: ignore[arg-type]
        raise StreamingQueryException("[STREAM_FAILED] refused") from OutputError("refused")
