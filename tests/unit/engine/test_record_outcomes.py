"""The outcomes of records whose rows go to operators, and batches that divide no record."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from sluice.engine.batch.record_outcomes import (
    Outcome,
    PassedOver,
    RecordOutcome,
    corrected_counts,
)
from sluice.engine.batch.row_schemas import origins
from sluice.engine.batch.side_outputs import Collected, SideOutputs
from sluice.engine.stages.ingest import whole_records

TOPICS = {0: "sales", 3: "a-b"}


def outcome(records: list[int], applied: list[int], for_operators: list[int]) -> RecordOutcome:
    none = np.zeros(len(records), bool)
    return RecordOutcome(
        np.array(records),
        np.array(applied, bool),
        np.array(for_operators),
        none,
        none,
    )


def passed_over(*rows: tuple[int, int, int, Outcome]) -> PassedOver:
    """Rows that operators have passed over.

    Each has the offset and the number of rows of its record, the record's outcome otherwise, and
    why.
    """
    passed = PassedOver()
    for offset, number, otherwise, why in rows:
        (origin,) = origins(0, 2, np.array([offset]))
        undecided = outcome([offset], [0], [number])
        undecided.late[:] = otherwise == Outcome.LATE
        passed.add(np.array([origin]), undecided.decided()[1], np.array([why]))
    return passed


def test_a_record_counts_as_applied_until_operators_pass_over_all_of_its_rows() -> None:
    decided, undecided = outcome([7, 8, 9], [0, 0, 1], [1, 0, 1]).decided()
    assert decided.tolist() == [Outcome.APPLIED, Outcome.FILTERED, Outcome.APPLIED]
    assert undecided[0] > 0, "only the operator knows"
    assert undecided[2] == 0, "it was written, whatever the operator does"


def test_all_rows_of_a_record_are_undecided_together() -> None:
    together = outcome([7, 7, 7, 8], [0, 0, 0, 0], [1, 0, 2, 3]).decided()[1].tolist()
    assert together[0] == together[1] == together[2] == together[3]
    written = outcome([7, 7, 8], [0, 1, 0], [1, 0, 1]).decided()[1].tolist()
    assert written[:2] == [0, 0]


def test_the_task_corrects_the_counts_of_records_with_one_row() -> None:
    passed = passed_over(
        (1, 1, Outcome.FILTERED, Outcome.LATE),
        (2, 1, Outcome.FILTERED, Outcome.LATE),
        (3, 1, Outcome.FILTERED, Outcome.DUPLICATE),
        (4, 1, Outcome.LATE, Outcome.NULL_KEY),
    )
    assert passed.corrections == {
        (0, 2): Counter(applied=-4, late_everywhere=3, **{"dropped/duplicate": 1}),
    }
    assert passed.reports().num_rows == 0


def test_rows_that_decide_nothing_change_no_count() -> None:
    passed = PassedOver()
    passed.add(origins(0, 0, np.array([1])), np.array([0]), np.array([Outcome.LATE]))
    assert (passed.corrections, passed.reports().num_rows) == ({}, 0)


def test_the_driver_decides_about_records_whose_rows_went_to_several_operators() -> None:
    first = passed_over(
        (1, 2, Outcome.FILTERED, Outcome.NULL_VALUE),
        (2, 2, Outcome.FILTERED, Outcome.LATE),
    )
    second = passed_over(
        (1, 2, Outcome.FILTERED, Outcome.LATE),
        (3, 2, Outcome.FILTERED, Outcome.LATE),
    )
    outputs = SideOutputs()
    for number, passed in enumerate((first, second)):
        assert passed.corrections == {}
        outputs.add_undecided(f"stage-1-{number}", passed.reports())
    collected = Collected(outputs.take())
    stats = corrected_counts(collected.undecided(), TOPICS)
    assert stats.counts == {"applied": -1, "late_everywhere": 1}, "only the first record"
    assert stats.by_partition == {"sales-2": {"applied": -1, "late_everywhere": 1}}


def test_without_reports_nothing_is_corrected() -> None:
    assert corrected_counts([], TOPICS).counts == {}


def batch(*rows: tuple[int, int, int]) -> pa.RecordBatch:
    """Rows of records: their source, partition and offset."""
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    names = ("_source", "_partition", "_offset")
    arrays = [pa.array(column, pa.int64()) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def offsets(*batches: pa.RecordBatch) -> list[list[int]]:
    return [whole.column("_offset").to_pylist() for whole in whole_records(iter(batches))]


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([[1, 2], [2, 3]], [[1], [2, 2, 3]]),
        ([[1], [1], [1, 2]], [[1, 1, 1, 2]]),
        ([[1, 2, 2], [], [2, 2], [2, 3], [4]], [[1], [2, 2, 2, 2, 2, 3], [4]]),
        ([], []),
    ],
)
def test_no_record_is_divided(given: list[list[int]], whole: list[list[int]]) -> None:
    assert offsets(*(batch(*((0, 0, offset) for offset in numbers)) for numbers in given)) == whole


def test_records_of_other_partitions_and_sources_are_other_records() -> None:
    assert offsets(batch((0, 0, 5)), batch((0, 1, 5)), batch((1, 1, 5))) == [[5], [5], [5]]
    assert offsets(batch((0, 0, 5), (0, 1, 5)), batch((0, 1, 5))) == [[5], [5, 5]]
