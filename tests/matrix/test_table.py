"""The table of docs/versions.md has one row for each combination that has been run."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.provision.jars import BROKER
from tests.matrix.cells import CELLS, Cell
from tests.matrix.run_cell import PARTS
from tests.matrix.table import DOCUMENT, row_of, table, written

TRIED = Cell("3.1.8", "4.0.5", "3.11")
OTHER = Cell("3.2.2", "4.1.3", "3.12", client="4.1.3")
DAY = "2026-11-29"


def document(*rows: tuple[str, ...]) -> str:
    """A document with a table, and text before and after the table."""
    begin, end = "<!-- Written by `make matrix WRITE=1` -->", "<!-- End -->"
    return f"before\n\n{begin}\n\n{table(rows)}\n\n{end}\n\nafter | the | table\n"


def result(cell: Cell, *, failed: str = "", parts: tuple[str, ...] = PARTS) -> dict[str, Any]:
    steps = [{"part": part, "name": part, "passed": part != failed} for part in parts]
    versions = {"airflow": cell.airflow, "spark": cell.spark, "python": cell.python}
    return {"cell": versions | {"client": cell.client}, "day": DAY, "steps": steps}


def test_a_row_says_what_has_passed_failed_and_was_not_run() -> None:
    parts = ("install", "airflow", "check", "orders")
    assert row_of(result(OTHER, failed="orders", parts=parts)) == (
        *("3.2.2", "4.1.3, pyspark-client 4.1.3", "3.12", "17", BROKER),
        *("passes", "passes", "fails: orders", "not run", DAY),
    )


def test_a_new_result_replaces_the_row_of_its_combination() -> None:
    before = document(row_of(result(TRIED, failed="check")))
    assert written(before, [result(TRIED)]) == document(row_of(result(TRIED)))


def test_rows_of_other_combinations_stay() -> None:
    before = document(row_of(result(TRIED)))
    after = written(before, [result(OTHER, failed="tests")])
    assert after == document(row_of(result(TRIED)), row_of(result(OTHER, failed="tests")))


def test_rows_of_combinations_that_the_matrix_no_longer_has_are_removed() -> None:
    before = document(row_of(result(TRIED)), row_of(result(OTHER)))
    assert written(before, [], cells=[OTHER]) == document(row_of(result(OTHER)))


def test_the_document_has_rows_of_the_matrix_only() -> None:
    text = DOCUMENT.read_text()
    assert written(text, []) == text


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_each_combination_has_a_name_of_its_own(cell: Cell) -> None:
    assert [other for other in CELLS if other.name == cell.name] == [cell]
