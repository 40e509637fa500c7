"""Processes the rows of a left or outer join of streams in columns, with the results of the operator.

The operator processes the rows of a key one by one in three cases: the rows have no key; they come
from several partitions, so that times go back; or a record of the key is already due when the batch
begins, or when the record comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from sluice.engine.batch.row_schemas import BEGIN
from sluice.engine.stages.emitted_rows import released_rows
from sluice.engine.stages.operator_rows import OperatorRows
from sluice.engine.stages.operator_run import OperatorRun
from sluice.engine.stages.stage_output import StageOutput
from sluice.engine.stages.timeline import Timeline
from sluice.operators.columns import KeyedRows, KeyStates
from sluice.operators.joins.stream_join import StreamJoin
from sluice.operators.joins.unmatched import keys_in_order
from sluice.support.arrays import Mask

FEWEST_ROWS = 100
"""Fewer rows than this are joined faster one by one."""
_NUMBER = "number"


@dataclass(frozen=True)
class ColumnJoin:
    """A join of two streams that sends unmatched records."""

    run: OperatorRun
    operator: StreamJoin
    timeline: Timeline

    @classmethod
    def of(cls, run: OperatorRun) -> Self | None:
        """The join of an operator; None if the operator processes its rows one by one, or needs no stream time."""
        operator = run.operator
        # With `Watch`, a record that is due waits for the next search, which depends on the rows of
        # all keys.
        if (
            not isinstance(operator, StreamJoin)
            or not any(operator.outer)
            or operator.shared is not None
        ):
            return None
        assert run.timeline is not None
        return cls(run, operator, run.timeline)

    def process(self, rows: OperatorRows, output: StageOutput) -> OperatorRows:
        """Join rows. Returns the remaining rows, which the operator has to process one by one.

        The states of the rows' keys have been loaded.
        """
        if len(rows) < FEWEST_ROWS:
            return rows
        is_left = np.ones(len(rows), np.bool_)
        numbered = OperatorRows(
            {**rows.columns, _NUMBER: pa.array(np.arange(len(rows)))}, rows.stream_times
        )
        for keyed, part in numbered.by_key():
            if keyed is not None:
                joined = self._join(keyed, part, output)
                is_left[joined.columns[_NUMBER].to_numpy()] = False
        return rows.where(is_left)

    def _join(self, keyed: KeyedRows, part: OperatorRows, output: StageOutput) -> OperatorRows:
        """Join the rows of the keys for which this is possible. Returns these rows."""
        is_possible = keys_in_order(self.operator.lateness, keyed) & ~self._has_due_records(keyed)
        if not is_possible.all():
            part = part.where(is_possible[keyed.key_numbers])
            counts = np.diff(keyed.starts)[is_possible]
            keyed = part.keyed(np.append(0, np.cumsum(counts)))
        states = KeyStates(keyed.keys, self.run.states, self.operator.new_state)
        joined = self.operator.join_outer(states, keyed, self.timeline.advances_until)
        if joined is None:
            return part.where(np.zeros(len(part), np.bool_))
        results, released = joined
        output.add_columns(self.run.spec, results, keyed, part)
        if len(released.keys):
            output.add_rows(
                released_rows(self.run.spec.number, self.timeline, released, {}, before=True)
            )
        assert self.run.releases is not None
        for key in keyed.keys:
            # The results of the key that were due in this batch are sent now.
            self.run.releases.schedule(key, None, BEGIN)
        return part

    def _has_due_records(self, keyed: KeyedRows) -> Mask:
        """Mask of the keys with a record that was already due before the batch's first record.

        No advance of stream time has caused its result.
        """
        has_due = np.zeros(len(keyed.keys), np.bool_)
        states = KeyStates(keyed.keys, self.run.states, self.operator.new_state)
        for number, state in states.existing():
            due = self.operator.release_due(state)
            has_due[number] = due is not None and due <= self.timeline.closed_before
        return has_due
