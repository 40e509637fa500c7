"""What Sluice must answer in a case with an answer of the real library.

The answer of the library, unless it follows from a rule in which Sluice differs on purpose. This is
so if the model gives the library's answer by all rules of Kafka Streams, and another one by
Sluice's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.conformance.model.differences import KAFKA_STREAMS, SLUICE, Difference, Differences
from tests.conformance.model.flow import Record, Windowed
from tests.conformance.model.topology import Case, run

Row = dict[str, Any]
"""A result in the form of the cases: `key`, `window`, `value`, `ts`."""


@dataclass(frozen=True)
class Answer:
    """What Sluice must answer in a case."""

    rows: Sequence[Row]
    because_of: Sequence[Difference] = ()
    """The differences that lead to another answer than the library's."""
    is_corrected: bool = False
    """Whether the answer is the model's, which differs from the library's."""


def answer_of(case: Case) -> Answer:
    """What Sluice must answer. The model does not know all operators of the cases."""
    recorded = recorded_rows(case)
    try:
        corrected = computed(case, SLUICE)
        is_corrected = is_same(computed(case, KAFKA_STREAMS), recorded) and not is_same(
            corrected, recorded
        )
    except NotImplementedError:
        is_corrected = False
    if not is_corrected:
        return Answer(case["expected"]["final"])
    rows = _with_headers(corrected, case["expected"]["final"])
    return Answer(rows, _causes(case, recorded, corrected), is_corrected=True)


def _causes(
    case: Case, recorded: Iterable[Record], corrected: Iterable[Record]
) -> list[Difference]:
    """The differences that each lead to Sluice's answer alone or, if none does, to another one than the library's."""
    answers = {one: computed(case, KAFKA_STREAMS - {one}) for one in Difference}
    alone = [one for one, answer in answers.items() if is_same(answer, corrected)]
    return alone or [one for one, answer in answers.items() if not is_same(answer, recorded)]


def computed(case: Case, like: Differences) -> list[Record]:
    """The model's results: all records of a stream, or the final rows of a table."""
    nodes, sink = case["spec"]["nodes"], case["spec"]["sink"]
    is_table = case["spec"]["result_kind"] == "table"
    if is_table:
        nodes = [*nodes, {"id": "written", "op": "to_stream", "in": sink, "keep_window": True}]
        sink = "written"
    rows = run({"spec": {"nodes": nodes}, "inputs": case["inputs"]}, sink, like=like)[sink]
    return _final(rows) if is_table else rows


def recorded_rows(case: Case) -> list[Record]:
    """The library's results in the form of the model's."""
    rows = [
        Record(_key(row["key"], row["window"]), row["value"], row["ts"])
        for row in case["expected"]["final"]
    ]
    return _final(rows) if case["spec"]["result_kind"] == "table" else rows


def is_same(one: Iterable[Record], other: Iterable[Record]) -> bool:
    """Whether results are equal, whatever their order."""
    return not difference(one, other)


def difference(wanted: Iterable[Record], found: Iterable[Record]) -> str:
    """The missing and the unexpected results; empty if there are none."""
    texts, others = Counter(map(text, wanted)), Counter(map(text, found))
    missing, extra = sorted((texts - others).elements()), sorted((others - texts).elements())
    return f"missing {missing[:3]}, too much {extra[:3]}" if missing or extra else ""


def counts(answers: Iterable[Answer]) -> Counter[str]:
    """For each difference, how many answers are the model's because of it."""
    counted: Counter[str] = Counter()
    for answer in answers:
        if answer.is_corrected:
            names = [one.value for one in answer.because_of]
            counted.update(names or ["Several differences together"])
    return counted


def report(answers: Sequence[Answer]) -> list[str]:
    """The lines that say how many answers are the model's, and why."""
    number = sum(answer.is_corrected for answer in answers)
    if not number:
        return []
    lines = [
        f"{number} compared with the model, because Kafka Streams differs (docs/differences.md):"
    ]
    return [*lines, *(f"  {count}: {name}" for name, count in counts(answers).most_common())]


def text(row: Record) -> str:
    return json.dumps([row.key, row.value, row.time], sort_keys=True)


def _final(rows: list[Record]) -> list[Record]:
    """The last row of each key, without deleted ones."""
    return [row for row in {row.key: row for row in rows}.values() if row.value is not None]


def _key(key: str | None, window: list[int] | None) -> Any:
    return Windowed(str(key), *window) if window else key


def _with_headers(rows: Iterable[Record], recorded: Iterable[Row]) -> list[Row]:
    """The model's results as rows. They have the headers of the library's row, if it has such a row."""
    like_recorded: dict[str, list[Row]] = {}
    for row in recorded:
        record = Record(_key(row["key"], row["window"]), row["value"], row["ts"])
        like_recorded.setdefault(text(record), []).append(row)
    made: list[Row] = []
    for record in rows:
        same = like_recorded.get(text(record))
        made.append(same.pop(0) if same else _row(record))
    return made


def _row(record: Record) -> Row:
    key = record.key
    if isinstance(key, Windowed):
        return {
            "key": key.key,
            "window": [key.start, key.end],
            "value": record.value,
            "ts": record.time,
        }
    return {"key": key, "window": None, "value": record.value, "ts": record.time}
