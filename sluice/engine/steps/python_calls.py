"""Calls an author's Python functions for records, in Spark's SQL functions or where steps are computed on Arrow.

The arguments are a flag (whether the record reaches the step), the key, and the value as JSON. The result is a struct
whose `error` holds the error of the author's function, so that the record is rejected instead of ending the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from sluice.engine.batch.rejections import describe_error, run_ending_error, subject_of
from sluice.operators.base import rejects_record, require_run
from sluice.operators.encoding import Declared, require_key
from sluice.plan import Job, PythonFunction
from sluice.values.keys import key_text

Function: TypeAlias = Callable[[bool | None, str | None, str | None], dict[str, Any] | None]


def functions_of(job: Job) -> dict[str, Function]:
    """The job's Python functions, by the names under which SQL calls them."""
    functions: dict[str, Function] = {}
    for function in job.functions:
        step = str(job.pipeline.steps[function.number])
        functions[f"python_{function.number}"] = Call(function, step).call
    return functions


@dataclass(frozen=True)
class Call:
    """Calls an author's function for a record."""

    planned: PythonFunction
    step: str
    """The step's name in errors."""

    @cached_property
    def _decode(self) -> Callable[[str], Any]:
        return msgspec.json.Decoder(self.planned.takes.value if self.planned.takes else Any).decode

    def call(
        self,
        passed: bool | None,
        key: str | None,
        value: str | None,
    ) -> dict[str, Any] | None:
        # A filter does not drop rows, because other branches of the pipeline may read them. The function is not
        # called for a record that does not reach the step.
        if not passed:
            return None
        # The function and the decoder are loaded outside of the `try`, because an error while
        # loading them must not reject the record.
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
                if (result := function(key, value)) is not None:
                    require_run(result)
                return {}
            # Only True and False: the truth of another value, such as an empty
            # list, would hide a mistake.
            case "condition":
                if type(result := function(key, value)) is not bool:
                    require_run(result)
                return {"value": "true" if result else "false"}
            case "key":
                return {"key": _key(function(key, value))}
            case "record":
                return self._pair(function(key, value))
            case "records":
                return {"items": [self._pair(pair) for pair in function(key, value)]}
            case "values":
                elements = function(key, value)
                return {"items": [{"value": self._json(element)} for element in elements]}
            case _:
                return {"value": self._json(function(key, value))}

    def _pair(self, pair: tuple[Any, Any]) -> dict[str, Any]:
        key, value = pair
        return {"key": _key(key), "value": self._json(value)}

    def _json(self, value: Any) -> str | None:
        """The value as JSON. Raises an error if the value is not of the type that the step declares."""
        return None if value is None else self._declared.json(value)

    @cached_property
    def _declared(self) -> Declared:
        return Declared(Any if self.planned.returns is None else self.planned.returns.value)


def _key(key: Any) -> str | None:
    """The text of a key. Raises an error for a key that is too long, and for a value that cannot be a key."""
    require_run(key)
    text = key_text(key)
    if text is not None:
        require_key(text)
    return text
