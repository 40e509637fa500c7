"""Turns a stream of changes into the changed rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.operators.base import Output, Row
from sluice.operators.latest_value import LatestValue
from sluice.operators.operator import Operator
from sluice.values.change_values import CheckOld


class _Change(msgspec.Struct):
    kind: str | None
    old: msgspec.Raw


_decode = msgspec.json.Decoder(_Change).decode
_columns_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL = msgspec.Raw(b"null")


@dataclass(frozen=True)
class ChangedRows(Operator[LatestValue]):
    """Sends the new row of each change, or a null value for a deletion.

    `Row.foreign` is JSON of the change's kind and old row. With `check_old`, the state holds the
    row of each key, and the old row of the key's next change is compared with it.
    """

    check_old: CheckOld | None
    may_lack_columns: bool
    """Whether old rows may lack columns. A column that is null may not have been sent, so it is not
    compared."""
    state_type: Any = LatestValue

    def new_state(self) -> LatestValue:
        return LatestValue()

    def process(self, state: LatestValue, row: Row, out: Output) -> None:
        assert row.foreign is not None
        change = _decode(row.foreign)
        old = bytes(change.old).decode()
        differs = (
            self.check_old is not None and row.key is not None and self._differs(old, state.value)
        )
        error = None
        if change.kind == "truncate":
            error = ValueError(
                "the change removes all rows of the table, but Sluice can remove only the row "
                "of the change's key"
            )
        elif differs and self.check_old == "reject":
            row_of_key = state.value or "which has none"
            error = ValueError(f"the old row of the change is not the row of its key, {row_of_key}")
        if error is not None:
            out.hold()
            out.reject(error, row.key, row.foreign, row.time)
            return
        if differs:
            out.count("old_differs")
        if self.check_old is not None:
            state.value, state.time = row.value, row.time
        out.emit(row.key, row.value, row.time)

    def _differs(self, old: str, row: str | None) -> bool:
        """Return whether `old` and the key's row differ in a column that the database has sent."""
        # If the database does not send the old row, `old` is null, and there is nothing to compare.
        if old in ("null", row or "null"):
            return False
        if row is None or not self.may_lack_columns or not old.startswith("{"):
            return True
        columns = _columns_of(row)
        for name, sent in _columns_of(old).items():
            if sent not in (_NULL, columns.get(name)):
                return True
        return False

    def is_empty(self, state: LatestValue) -> bool:
        return state.value is None
