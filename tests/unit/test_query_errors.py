"""What a run reports when Spark's query fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from sluice.engine.job.run import query_errors
from sluice.errors import EngineError

PIPELINE = SimpleNamespace(name="orders", steps={})
STORAGE: Any = SimpleNamespace(job=SimpleNamespace(pipeline=PIPELINE), checkpoint="/checkpoints/orders", locations=[])
PUBLISHER: Any = SimpleNamespace(error=None)
LEASE: Any = SimpleNamespace(require=lambda: None)


def error_of(cause: str) -> str:
    with pytest.raises(EngineError) as error, query_errors(PUBLISHER, STORAGE, LEASE):
        raise StreamingQueryException(f"[STREAM_FAILED] Query terminated with exception: {cause}\nCaused by: {cause}")
    return str(error.value)


def test_a_full_disk_is_named_with_what_to_do() -> None:
    assert error_of("OSError: [Errno 28] No space left on device") == (
        "The query of orders failed: OSError: [Errno 28] No space left on device. A disk is full, for example that of "
        "/checkpoints/orders: free some space. Nothing from the batch was published; the next run retries it."
    )


def test_any_other_error_ends_with_the_commands_for_a_retry_and_a_rebuild() -> None:
    assert error_of("java.io.IOException: Stream is corrupted.") == (
        "The query of orders failed: java.io.IOException: Stream is corrupted. Nothing from the batch was published; "
        "the next run retries it. If the checkpoint /checkpoints/orders is damaged: sluice rebuild orders."
    )
