"""Calls an author's Python functions for records, from Spark SQL or from `arrow_steps`.

The arguments of a call are a flag (whether the record reaches the step), the key, and the value as
JSON. The result is a struct whose field `error` holds the error that the author's function raised.
The error therefore rejects the record instead of ending the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa

from sluice.engine.batch.rejections import (
    describe_error,
    run_ending_error,
    subject_of,
)
from sluice.errors import RecordFailed
from sluice.operators.base import listed_results, rejects_record, require_run
from sluice.operators.encoding import Declared, require_key
from sluice.plan import Job, PythonFunction
from sluice.sql.arrow_from_json import array_of_json
from sluice.sql.arrow_types import arrow_type
from sluice.values.call_parameters import FunctionBatch
from sluice.values.keys import key_text
from sluice.values.phrases import counted
from sluice.values.stored_values import value_decoder

Outcome: TypeAlias = dict[str, Any] | None
"""The result of a call, or its error; None for a record that does not reach the step."""
Function: TypeAlias = Callable[
    [Sequence[bool | None], Sequence[str | None], Sequence[str | None]],
    list[Outcome],
]


def functions_of(job: Job) -> dict[str, Function]:
    """Return the job's Python functions, by their names in SQL. They take many records at once."""
    return {name: call.call_all for name, call in calls_of(job).items()}


def calls_of(job: Job) -> dict[str, PythonCall | BatchCall]:
    """Return the calls of the job's Python functions, by the functions' names in SQL."""
    calls: dict[str, PythonCall | BatchCall] = {}
    for function in job.functions:
        step = str(job.pipeline.steps[function.number])
        name = f"python_{function.number}"
        if function.batch is None:
            calls[name] = PythonCall(function, step)
        else:
            calls[name] = BatchCall(function, step, function.batch)
    return calls


@dataclass(frozen=True)
class _Calls:
    """Base class of `PythonCall` and `BatchCall`, which call an author's function."""

    planned: PythonFunction
    step: str
    """The step's name in errors."""

    @cached_property
    def _decode(self) -> Callable[[str], Any]:
        if self.planned.takes is None:
            return value_decoder(Any)
        return value_decoder(self.planned.takes.value)

    def _json(self, value: Any) -> str | None:
        """Return the value as JSON.

        Raises an error if the value is not of the type that the step declares.
        """
        if value is None:
            return None
        return self._declared.json(value)

    @cached_property
    def _declared(self) -> Declared:
        if self.planned.returns is None:
            return Declared(Any)
        return Declared(self.planned.returns.value)


@dataclass(frozen=True)
class PythonCall(_Calls):
    """Calls an author's function for a record."""

    def call_all(
        self,
        passed: Sequence[bool | None],
        keys: Sequence[str | None],
        values: Sequence[str | None],
    ) -> list[Outcome]:
        """Call the function for each record."""
        return [self.call(*arguments) for arguments in zip(passed, keys, values, strict=True)]

    def call(
        self,
        passed: bool | None,
        key: str | None,
        value: str | None,
    ) -> dict[str, Any] | None:
        # A filter does not drop rows, because other branches of the pipeline may read them. So do
        # not call the function for a record that does not reach the step.
        if not passed:
            return None
        # Load the function and the decoder outside of the `try`: an error while loading them must
        # not reject the record.
        function, decode = self.planned.function.value, self._decode
        try:
            return self._result(function, key, None if value is None else decode(value))
        except BaseException as error:
            if not rejects_record(error):
                raise run_ending_error(self.step, error, subject_of(key)) from error
            return {"error": describe_error(error)}

    def _result(self, function: Callable[..., Any], key: str | None, value: Any) -> dict[str, Any]:
        match self.planned.gives:
            case "nothing":
                result = function(key, value)
                if result is not None:
                    require_run(result)
                return {}
            # As in Python's `if`, any result counts as true or false. Coroutines and generators are
            # rejected: they would count as true, although the author's code has not run.
            case "condition":
                result = function(key, value)
                if type(result) is not bool:
                    require_run(result)
                return {"value": "true" if result else "false"}
            case "key" | "mapped_key":
                return {"key": _key(function(key, value))}
            case "record":
                return self._pair(function(key, value))
            case "records":
                return {"items": [*map(self._pair, function(key, value))]}
            case "values":
                items: list[dict[str, Any]] = []
                for element in function(key, value):
                    items.append({"value": self._json(element)})
                return {"items": items}
            case _:
                return {"value": self._json(function(key, value))}

    def _pair(self, pair: tuple[Any, Any]) -> dict[str, Any]:
        key, value = pair
        return {"key": _key(key), "value": self._json(value)}


@dataclass(frozen=True)
class BatchCall(_Calls):
    """Calls an author's function for many values at once. Nulls stay null without a call."""

    batch: FunctionBatch

    def call_all(
        self,
        passed: Sequence[bool | None],
        keys: Sequence[str | None],
        values: Sequence[str | None],
    ) -> list[Outcome]:
        """Pass the values of the records that reach the step to the function, in batches."""
        outcomes: list[Outcome] = []
        chosen: list[int] = []
        for number, (reaches, value) in enumerate(zip(passed, values, strict=True)):
            outcomes.append({"value": None} if reaches else None)
            if reaches and value is not None:
                chosen.append(number)
        for begin in range(0, len(chosen), self.batch.size):
            numbers = chosen[begin : begin + self.batch.size]
            texts = [str(values[number]) for number in numbers]
            for number, outcome in zip(numbers, self._outcomes(texts), strict=True):
                outcomes[number] = outcome
        return outcomes

    def _outcomes(self, texts: list[str]) -> list[Outcome]:
        """Call the function with these values.

        If the call fails, call the function with each half of the values, and so on.
        """
        # Load the function outside of the `try`: an error while loading it must not reject a
        # record.
        function = self.planned.function.value
        values = self._arguments(texts)
        try:
            results = function(values)
            require_run(results)
        except BaseException as error:
            if not rejects_record(error):
                raise run_ending_error(self.step, error, counted(len(texts), "value")) from error
            if len(texts) == 1:
                return [{"error": describe_error(error)}]
            # One value makes the whole call fail. Call each half separately to find this value.
            middle = len(texts) // 2
            return self._outcomes(texts[:middle]) + self._outcomes(texts[middle:])
        if isinstance(results, pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table):
            results = results.to_pylist()
        listed = listed_results(self.step, results, len(texts), RecordFailed)
        return [*map(self._outcome, listed)]

    def _arguments(self, texts: list[str]) -> Any:
        """Convert the values to the function's argument type."""
        if self.batch.table is None:
            return [*map(self._decode, texts)]
        column = array_of_json(pa.array(texts), arrow_type(self.batch.table))
        if pa.types.is_struct(column.type):
            return pa.RecordBatch.from_struct_array(column)
        return pa.RecordBatch.from_arrays([column], ["value"])

    def _outcome(self, result: Any) -> Outcome:
        try:
            return {"value": self._json(result)}
        except Exception as error:
            return {"error": describe_error(error)}


def _key(key: Any) -> str | None:
    """Return the text of a key.

    Raises an error for a key that is too long, and for a value that cannot be a key.
    """
    require_run(key)
    text = key_text(key)
    if text is not None:
        require_key(text)
    return text
