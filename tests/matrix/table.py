"""The table of the cells and their results, for the terminal and docs/versions.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "versions.md"
_BEGIN = "<!-- Written by `make matrix WRITE=1` -->"
_END = "<!-- End -->"
_HEAD = ("Airflow", "Spark", "Python", "Java", "installed", "check", "orders, REST", "tests")
_PARTS = (("wheel", "install", "airflow"), ("check",), ("orders",), ("tests",))
"""For each column, the parts of a run."""


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The results of all cells that have been run in the folder."""
    results = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return sorted(results, key=_order)


def _order(result: Mapping[str, Any]) -> tuple[str, ...]:
    cell = result["cell"]
    return cell["airflow"], cell["spark"], cell["python"], str(cell["java"])


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The table in Markdown."""
    lines = [_row(_HEAD), _row(["---"] * len(_HEAD))]
    for result in results:
        cell = result["cell"]
        spark = cell["spark"]
        if cell["client"]:
            spark += f", pyspark-client {cell['client']}"
        outcomes = [_outcome(result["steps"], parts) for parts in _PARTS]
        lines.append(_row([cell["airflow"], spark, cell["python"], str(cell["java"]), *outcomes]))
    return "\n".join(lines)


def _row(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |"


def _outcome(steps: Sequence[Mapping[str, Any]], parts: Sequence[str]) -> str:
    of_column = [step for step in steps if step["part"] in parts]
    if not of_column:
        return "not run"
    failed = [step["name"] for step in of_column if not step["passed"]]
    return f"fails: {failed[0]}" if failed else "passes"


CONSTRAINTS = DOCUMENT.parents[1] / "sluice" / "provision" / "constraints"


def write_constraints(results: Sequence[Mapping[str, Any]], left_out: Sequence[str]) -> None:
    """For each release of Airflow, write the versions of a combination that passes.

    `left_out` are the packages that only the tests need.
    """
    CONSTRAINTS.mkdir(exist_ok=True)
    for result in results:
        cell = result["cell"]
        if not (result["passed"] and cell["constraints"]):
            continue
        release = ".".join(cell["airflow"].split(".")[:2])
        lines = [
            f"# The combination of Airflow {cell['airflow']} and Spark {cell['spark']} in docs/versions.md. "
            "Written by: make matrix WRITE=1"
        ]
        for name, version in sorted(result["versions"].items()):
            if name not in ("sluice-streams", *left_out):
                lines.append(f"{name}=={version}")
        text = "\n".join(lines) + "\n"
        (CONSTRAINTS / f"airflow-{release}.txt").write_text(text)


def written(document: str, results: Sequence[Mapping[str, Any]]) -> str:
    """The document with a new table."""
    before, _, rest = document.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{table(results)}\n\n{_END}{after}"
