"""The table of the cells and their results, for the terminal and docs/versions.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tests.matrix.cells import CELLS, Cell

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "versions.md"
_BEGIN = "<!-- Written by `make matrix WRITE=1` -->"
_END = "<!-- End -->"
_HEAD = (
    "Airflow", "Spark", "Python", "Java", "Kafka",
    "installed", "check", "orders, REST", "tests", "run on",
)  # fmt: skip
_KEY = 5
"""The number of columns that name a combination."""
_PARTS = (("wheel", "install", "airflow"), ("check",), ("orders",), ("tests",))
"""For each column of outcomes, the parts of a run."""

Row: TypeAlias = tuple[str, ...]


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the results of all cells that have been run in the folder."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def table(rows: Iterable[Row]) -> str:
    """Return the table in Markdown, sorted by the versions."""
    head = (_HEAD, ("---",) * len(_HEAD))
    return "\n".join(f"| {' | '.join(row)} |" for row in (*head, *sorted(rows)))


def row_of(result: Mapping[str, Any]) -> Row:
    """Return a cell's row of the table."""
    outcomes = [_outcome(result["steps"], parts) for parts in _PARTS]
    return (*key_of(Cell(**result["cell"])), *outcomes, result["day"])


def key_of(cell: Cell) -> Row:
    """Return the columns that name a cell."""
    spark = f"{cell.spark}, pyspark-client {cell.client}" if cell.client else cell.spark
    return cell.airflow, spark, cell.python, str(cell.java), cell.kafka


def _outcome(steps: Sequence[Mapping[str, Any]], parts: Sequence[str]) -> str:
    of_column = [step for step in steps if step["part"] in parts]
    failed = [step["name"] for step in of_column if not step["passed"]]
    if failed:
        return f"fails: {failed[0]}"
    return "passes" if of_column else "not run"


def written(
    document: str, results: Sequence[Mapping[str, Any]], cells: Sequence[Cell] = CELLS
) -> str:
    """Return the document with new rows for the results.

    Rows of other cells stay, unless the matrix no longer has these cells.
    """
    before, _, rest = document.partition(_BEGIN)
    old, _, after = rest.partition(_END)
    known = {key_of(cell) for cell in cells}
    rows = {row[:_KEY]: row for row in rows_of(old) if row[:_KEY] in known}
    for result in results:
        row = row_of(result)
        rows[row[:_KEY]] = row
    return f"{before}{_BEGIN}\n\n{table(rows.values())}\n\n{_END}{after}"


def rows_of(text: str) -> list[Row]:
    """Return the rows of the table in a text, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [tuple(line.strip("| ").split(" | ")) for line in lines[2:]]


CONSTRAINTS = DOCUMENT.parents[1] / "sluice" / "provision" / "constraints"


def write_constraints(results: Sequence[Mapping[str, Any]], left_out: Sequence[str]) -> None:
    """For each release of Airflow, write the versions of a combination that passes all parts.

    `left_out` are the packages that only the tests need.
    """
    CONSTRAINTS.mkdir(exist_ok=True)
    for result in results:
        cell = result["cell"]
        if not (result["passed"] and cell["constraints"]):
            continue
        release = ".".join(cell["airflow"].split(".")[:2])
        lines = [
            f"# The combination of Airflow {cell['airflow']} and Spark {cell['spark']} in "
            "docs/versions.md. Written by: make matrix WRITE=1"
        ]
        for name, version in sorted(result["versions"].items()):
            if name not in ("sluice-streams", *left_out):
                lines.append(f"{name}=={version}")
        text = "\n".join(lines) + "\n"
        (CONSTRAINTS / f"airflow-{release}.txt").write_text(text)
