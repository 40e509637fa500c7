"""Steps with a call for each record: `call` calls an author's function, `lookup` reads a table.

Neither step keeps a state. The task of a stage makes the calls for many rows at once, and records
the answers in the worker's shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from typing_extensions import override

from sluice.errors import EngineError, error_text, sentence
from sluice.operators.base import (
    Answered,
    Asking,
    Output,
    RecordedFailure,
    Row,
    listed_results,
    require_run,
)
from sluice.operators.concurrent_calls import Calls
from sluice.operators.encoding import Declared
from sluice.operators.operator import Operator
from sluice.values.call_parameters import CallPolicy
from sluice.values.function_wrappers import is_async
from sluice.values.record_metadata import OnMissing
from sluice.values.stored_values import value_decoder
from sluice.values.windowed_keys import windowed_key_text

_CALLS_PER_TURN = 20
"""The number of rounds of concurrent calls before their answers are recorded. With more rounds,
less time is spent on waiting for the slowest call, but a crash loses more answers."""
_LOOKED_UP_AT_ONCE = 1_000


class _Stateless(Operator[None]):
    """Base class of `Call` and `Lookup`, which are stateless.

    `send` sends each row with its answer, so `process` is never called.
    """

    state_type: Any = None

    def new_state(self) -> None:
        return None

    def is_empty(self, state: None) -> bool:
        return True

    def process(self, state: None, row: Row, out: Output) -> None:
        raise AssertionError("rows are sent with their answers")


class Call(_Stateless):
    """Replaces each value with the result of an author's function. A null value stays null.

    The function takes key and value, and returns a result. With `size`, the function takes a list
    of up to `size` values, and returns a result for each.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        policy: CallPolicy,
        step: str,
        *,
        argument_type: Any = Any,
        result_type: Any = Any,
        otherwise: str | None = None,
        size: int | None = None,
    ) -> None:
        self.rows_at_once = policy.concurrency * (size or _CALLS_PER_TURN)
        self._function = function
        self._step = step
        self._calls = Calls(policy, step, is_async=is_async(function))
        self._decode = value_decoder(argument_type)
        self._declared = Declared(result_type)
        self._otherwise = otherwise
        self._size = size

    @property
    @override
    def asking(self) -> Asking:
        return self

    def needs_answer(self, row: Row) -> bool:
        return row.value is not None

    def ask(self, rows: Sequence[Row]) -> list[str | BaseException | None]:
        if self._size is None:
            results = self._calls.all([partial(self._call, row) for row in rows])
        else:
            results = self._ask_many(rows, self._size)
        return [self._json(result) for result in results]

    def _call(self, row: Row) -> Any:
        key = row.foreign
        if key is not None and row.window is not None:
            key = windowed_key_text(key, row.window)
        # Each attempt gets its own copy of the value, because the function may change it.
        return self._function(key, self._value(row))

    def _ask_many(self, rows: Sequence[Row], size: int) -> list[Any]:
        """Call the function with lists of up to `size` values.

        If a call with a list fails, call the function with each of its values alone.
        """
        lists = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
        calls = [partial(self._call_many, called_rows) for called_rows in lists]
        answers_of_lists = self._calls.all(calls)
        results: list[Any] = []
        for called_rows, answers in zip(lists, answers_of_lists, strict=True):
            if isinstance(answers, BaseException) and len(called_rows) > 1:
                results += self._ask_many(called_rows, 1)
            elif isinstance(answers, BaseException):
                results.append(answers)
            else:
                results += listed_results(self._step, answers, len(called_rows), EngineError)
        return results

    def _call_many(self, rows: Sequence[Row]) -> Any:
        return self._function([self._value(row) for row in rows])

    def _value(self, row: Row) -> Any:
        return self._decode(row.value or "null")

    def _json(self, result: Any) -> str | BaseException | None:
        if result is None or isinstance(result, BaseException):
            return result
        try:
            require_run(result)
            return self._declared.json(result)
        except Exception as error:
            return error

    def send(self, row: Row, answer: Answered, out: Output) -> None:
        value = answer.value
        if answer.error is not None:
            if self._otherwise is None:
                out.reject(RecordedFailure(answer.error), row.foreign, row.value, row.time)
                return
            out.count("otherwise")
            value = None if self._otherwise == "null" else self._otherwise
        out.emit(row.foreign, value, row.time, window=row.window)


Rows = Mapping[str, str | BaseException]
"""Key → the table's row as JSON, or the error that rejects the record. The mapping lacks keys that
have no row."""


class Lookup(_Stateless):
    """Joins each record with the table's row of its key: `{"left": value, "right": row}`.

    The table is in a database, or is a store of another pipeline.

    `Row.key` is the key to look up, and `Row.foreign` is the record's own key. `read` reads the
    table's rows of many keys.
    """

    rows_at_once = _LOOKED_UP_AT_ONCE
    source = "the database"
    """The name, in errors, of the source that is read."""

    def __init__(
        self,
        read: Callable[[Sequence[str]], Rows],
        policy: CallPolicy,
        step: str,
        on_missing: OnMissing,
    ) -> None:
        self._read = read
        self._step = step
        self._calls = Calls(policy, step)
        self._on_missing = on_missing

    @property
    @override
    def asking(self) -> Asking:
        return self

    def needs_answer(self, row: Row) -> bool:
        return row.key is not None and row.value is not None

    def ask(self, rows: Sequence[Row]) -> list[str | BaseException | None]:
        keys = sorted({row.key for row in rows if row.key is not None})
        (rows_by_key,) = self._calls.all([partial(self._read, keys)])
        if isinstance(rows_by_key, BaseException):
            raise EngineError(
                f"{self._step}: {self.source} cannot be read: {sentence(error_text(rows_by_key))}",
                next_step="Nothing from the batch was published. "
                f"Run again when {self.source} answers.",
            )
        return [rows_by_key.get(row.key) for row in rows]

    def send(self, row: Row, answer: Answered, out: Output) -> None:
        if row.value is None:
            out.count("null_value")
            return
        if answer.error is not None:
            out.reject(RecordedFailure(answer.error), row.foreign, row.value, row.time)
            return
        if answer.value is None and self._on_missing == "drop":
            out.count("missing")
            return
        if answer.value is None and self._on_missing == "error":
            missing = RecordedFailure(f"LookupError: the table has no row for {row.key!r}")
            out.reject(missing, row.foreign, row.value, row.time)
            return
        joined = f'{{"left":{row.value},"right":{answer.value or "null"}}}'
        out.emit(row.foreign, joined, row.time, window=row.window)
