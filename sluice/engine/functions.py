"""An author's Python functions as functions of Spark SQL, which the plan's columns call.

Such a function takes whether the record got there, its key, and its value as JSON; it gives a struct whose `error` says
what the author's function raised, so that the record can be set aside instead of ending the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from sluice.engine.shipping import Shipped
from sluice.plan import Job
from sluice.topology import nodes

RESULT = "struct<key:string, value:string, items:array<struct<key:string, value:string>>, error:string>"

_encode = msgspec.json.Encoder(decimal_format="number").encode


def register(spark: SparkSession, job: Job) -> None:
    """Make the job's Python functions known to a session."""
    for number, node in job.functions.items():
        spark.udf.register(f"python_{number}", Step.of(node).call, RESULT)


@dataclass(frozen=True)
class Step:
    """One function and what it gives."""

    function: Shipped
    gives: str
    takes: Shipped | None
    returns: Shipped | None

    @classmethod
    def of(cls, node: nodes.Apply) -> Step:
        """The step of a node."""
        takes, returns = (None if one is None else Shipped.of(one) for one in (node.takes, node.returns))
        return cls(Shipped.of(node.function), node.gives, takes, returns)

    @cached_property
    def _decode(self) -> Callable[[str], Any]:
        return msgspec.json.Decoder(self.takes.value if self.takes else Any).decode

    def call(self, passed: bool | None, key: str | None, value: str | None) -> dict[str, Any] | None:
        """The function's result for one record."""
        if not passed:
            return None
        try:
            return self._result(key, None if value is None else self._decode(value))
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _result(self, key: str | None, value: Any) -> dict[str, Any]:
        function = self.function.value
        match self.gives:
            case "nothing":
                function(key, value)
                return {}
            case "condition":
                return {"value": "true" if function(value) else "false"}
            case "key":
                return {"key": _text(function(value))}
            case "record":
                return _pair(function(key, value))
            case "records":
                return {"items": [_pair(pair) for pair in function(key, value)]}
            case "values":
                return {"items": [{"value": _json(one)} for one in function(value)]}
            case _:
                return {"value": _json(function(value))}


def _pair(pair: tuple[Any, Any]) -> dict[str, Any]:
    key, value = pair
    return {"key": _text(key), "value": _json(value)}


def _text(key: Any) -> str | None:
    return key if key is None or isinstance(key, str) else _encode(key).decode()


def _json(value: Any) -> str | None:
    return None if value is None else _encode(value).decode()
