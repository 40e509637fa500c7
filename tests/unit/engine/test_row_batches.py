"""How rows travel between the tasks of a job: many rows for one worker in one value."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.engine.batch import row_batches
from sluice.engine.batch.row_batches import RowBatchReader, RowBatchWriter
from sluice.engine.batch.row_schemas import SCHEMA, rows
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.values.key_owners import owner

KEYS = [f"key-{number}" for number in range(50)]


def with_keys(*keys: str | None, **columns: pa.Array) -> pa.RecordBatch:
    """Rows with these keys, in this order."""
    own = {
        "target": 1,
        "key": pa.array(keys, pa.string()),
        "sequence": pa.array(range(len(keys))),
        "path": b"\x00",
    }
    return rows(len(keys), own | columns)


def received(pack: RowBatchWriter, *batches: pa.RecordBatch) -> dict[int, list[dict[str, object]]]:
    """Worker → the rows that it gets, in order."""
    table = pa.Table.from_batches(RowBatchReader(SideOutputs())(pack(iter(batches))), SCHEMA)
    by_worker: dict[int, list[dict[str, object]]] = {}
    for row in table.to_pylist():
        by_worker.setdefault(row.pop("worker"), []).append(row)
    return by_worker


def without_worker(batch: pa.RecordBatch) -> list[dict[str, object]]:
    dictionaries: list[dict[str, object]] = batch.drop_columns(["worker"]).to_pylist()
    return dictionaries


def test_each_worker_gets_the_rows_of_its_keys_in_order() -> None:
    given = with_keys(*KEYS, *KEYS)
    expected: dict[int, list[dict[str, object]]] = {}
    for row in without_worker(given):
        expected.setdefault(owner(str(row["key"]), 3), []).append(row)
    assert (
        received(
            RowBatchWriter(3, SideOutputs()), given.slice(0, 30), given.slice(30), given.slice(0, 0)
        )
        == expected
    )
    assert received(RowBatchWriter(3, SideOutputs())) == {}


def test_a_row_with_a_worker_goes_there_and_a_row_without_a_key_anywhere() -> None:
    given = with_keys(*KEYS[:3], worker=pa.array([2, None, 0], pa.int32()))
    by_worker = received(RowBatchWriter(3, SideOutputs()), given)
    assert without_worker(given)[0] in by_worker[2]
    assert without_worker(given)[1] in by_worker[owner(KEYS[1], 3)]
    assert without_worker(given)[2] in by_worker[0]
    assert [*received(RowBatchWriter(3, SideOutputs()), with_keys(None)).values()] == [
        without_worker(with_keys(None))
    ]


def test_every_worker_gets_the_rows_for_all() -> None:
    given = with_keys(*KEYS)
    assert received(RowBatchWriter(3, SideOutputs(), to_all=True), given) == dict.fromkeys(
        range(3), without_worker(given)
    )


def test_a_row_batch_has_few_rows_and_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    given = with_keys(*KEYS, value=pa.array(["x" * 1_000] * len(KEYS)))
    for name, most, batch_count in (("_MOST_ROWS", 10, 5), ("_MOST_BYTES", 10_000, 5)):
        with monkeypatch.context() as patched:
            patched.setattr(row_batches, name, most)
            small = [given.slice(begin, 5) for begin in range(0, len(KEYS), 5)]
            assert (
                sum(batch.num_rows for batch in RowBatchWriter(1, SideOutputs())(iter(small)))
                >= batch_count
            )
            assert received(RowBatchWriter(1, SideOutputs()), *small) == {0: without_worker(given)}
    monkeypatch.setattr(row_batches, "_MOST_BYTES", 10_000)
    assert (
        sum(batch.num_rows for batch in RowBatchWriter(1, SideOutputs())(iter([given]))) >= 3
    )  # a batch that is too large is divided
