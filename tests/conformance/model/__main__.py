"""Runs the model on cases with the real library's answers: python -m tests.conformance.model FILE [FILE ...]"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conformance.model.flow import Record, Windowed
from tests.conformance.model.topology import Case, run


def difference(case: Case) -> str:
    """How the model's answer differs from the case's; empty if it does not."""
    nodes, sink = case["spec"]["nodes"], case["spec"]["sink"]
    if case["spec"]["result_kind"] == "table":
        nodes = [*nodes, {"id": "written", "op": "to_stream", "in": sink, "keep_window": True}]
        sink = "written"
    rows = run({"spec": {"nodes": nodes}, "inputs": case["inputs"]}, sink)[sink]
    expected = [Record(_key(row["key"], row["window"]), row["value"], row["ts"]) for row in case["expected"]["final"]]
    if case["spec"]["result_kind"] == "table":
        rows, expected = final(rows), final(expected)
    got, wanted = (Counter(_text(row) for row in some) for some in (rows, expected))
    missing, extra = sorted((wanted - got).elements()), sorted((got - wanted).elements())
    return f"missing {missing[:3]}, too much {extra[:3]}" if missing or extra else ""


def final(rows: list[Record]) -> list[Record]:
    """The last row of each key, without deleted ones."""
    return [row for row in {row.key: row for row in rows}.values() if row.value is not None]


def _key(key: str | None, window: list[int] | None) -> Any:
    return Windowed(str(key), *window) if window else key


def _text(row: Record) -> str:
    return json.dumps([row.key, row.value, row.time], sort_keys=True)


def main(files: list[str]) -> int:
    failed = passed = 0
    for file in files:
        for line in Path(file).read_text().splitlines():
            case = json.loads(line)
            if why := difference(case):
                failed += 1
                print(f"{case['id']}: {why}")
            else:
                passed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
