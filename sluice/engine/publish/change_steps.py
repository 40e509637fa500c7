"""Computes the steps between a group's store and an output on Arrow, for the changes of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.rejected import rejection
from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.plan import Column, FallibleExpression, Job, Lookup, Select, TableSink
from sluice.plan.arrow_support import NeedsSparkError, types_of
from sluice.plan.jobs import Layer
from sluice.sql.arrow_json import json_values
from sluice.sql.arrow_parsing import array_of_json
from sluice.sql.arrow_types import arrow_type
from sluice.sql.rules import json_problem
from sluice.values.sql_text import value_json
from sluice.values.sql_types import canonical

REJECTED = "_rejected"
"""The column with the JSON of a `Rejected`, for a change on which a step failed."""
_TIMES = {"_window_start": "window_start", "_window_end": "window_end"}


def right_column(step: int) -> str:
    """The column with what the lookup of a sink's step found."""
    return f"right_{step}"


def tried(step: Select, name: str, *, again: bool) -> tuple[FallibleExpression, str]:
    """The attempt of a step that may fail for a change, and SQL for the column `_rejected` after it.

    `again`: an earlier step may have failed for the change.
    """
    attempt = FallibleExpression(
        name, step.step, f"{REJECTED} IS NULL" if again else "true", (step.sql,), None, step.causes
    )
    rejected = rejection(step.step, attempt.error, value_json("v"))
    rejected = f"IF({attempt.error} IS NULL, NULL, {rejected})"
    return attempt, f"coalesce({REJECTED}, {rejected})" if again else rejected


def value_texts(changed: pa.Table, store_column: int) -> list[str]:
    """The JSON of a store's values in state rows, whose values are arrays."""
    return [bytes(decode_row(value)[store_column]).decode() for value in changed.column("value").to_pylist()]


decode_row = msgspec.json.Decoder(list[msgspec.Raw]).decode
"""The JSON of each value in a state row."""


@dataclass(frozen=True)
class ChangeSteps:
    """The steps of one output of a store."""

    store_column: int
    value: pa.DataType
    """The type of the store's values."""
    rights: Mapping[str, pa.DataType]
    """The column of what a lookup found → its type."""
    steps: ArrowSteps

    @classmethod
    def of(cls, job: Job, sink: TableSink, types: Mapping[str, str]) -> Self:
        """The steps of an output, given the type of each store. Raises NeedsSparkError if Spark must compute them."""
        store_column = job.groups_by_number[sink.group].store_columns[sink.store_column]
        value = canonical(types[store_column.store])
        known = {"_key": "STRING", "time": "BIGINT", "v": value, **dict.fromkeys(_TIMES, "TIMESTAMP")}
        rights: dict[str, str] = {}
        layers: list[Layer] = []
        rejects = False
        for number, step in enumerate(sink.steps):
            if isinstance(step, Lookup):
                right = right_column(number)
                rights[right] = canonical(step.table.value)
                layers.append((Column("v", f"named_struct('left', v, 'right', {right})", None),))
            elif not step.causes:
                layers.append((Column("v", step.sql, step.step),))
            else:
                attempt, rejected = tried(step, f"t{number}", again=rejects)
                columns = Column(REJECTED, rejected, step.step), Column("v", attempt.result(0), step.step)
                layers += [(attempt,), columns]
                rejects = True
        known |= rights
        if problem := json_problem(types_of(tuple(layers), known)["v"]):
            raise NeedsSparkError(problem)
        of_rights = {name: arrow_type(kind) for name, kind in rights.items()}
        return cls(sink.store_column, arrow_type(value), of_rights, ArrowSteps(tuple(layers), known))

    def __call__(self, changed: pa.Table) -> pa.Table:
        """The key, `value` and `timestamp` of each change, and perhaps `_rejected`.

        `changed` has the changes of the group, and the columns with what lookups found.
        """
        columns = {"_key": _whole(changed.column("key")), "time": _whole(changed.column("time"))}
        for name, of_state in _TIMES.items():
            times = _whole(changed.column(of_state))
            columns[name] = pc.if_else(pc.less(times, 0), None, pc.multiply(times, 1_000)).cast(arrow_type("TIMESTAMP"))
        columns["v"] = array_of_json(pa.array(value_texts(changed, self.store_column), pa.string()), self.value)
        for name, kind in self.rights.items():
            # A global table's value is an array of one value.
            found = [None if text is None else text[1:-1] for text in changed.column(name).to_pylist()]
            columns[name] = array_of_json(pa.array(found, pa.string()), kind)
        made = self.steps.columns_from(columns, changed.num_rows)
        value = pc.if_else(made["v"].is_valid(), json_values(made["v"]), None)
        records = {"key": made["_key"], "value": value, "timestamp": made["time"]}
        return pa.table(records | ({REJECTED: made[REJECTED]} if REJECTED in made else {}))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()
