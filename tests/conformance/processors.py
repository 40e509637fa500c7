"""Processors of the cases.

Spark's tasks find one by its name, which contains the node of the case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from sluice import Context, Record, Timer, ValueContext, Windowed
from tests.conformance.model import flow
from tests.conformance.model.expressions import Expression, evaluate, text


def processor(node: Mapping[str, Any]) -> type:
    """The processor of a node `process_values` or `punctuate`."""
    return _processor(f"{node['op']}_{json.dumps(node).encode().hex()}")


def __getattr__(name: str) -> Any:
    if name.startswith(("process_values_", "punctuate_")):
        return _processor(name)
    raise AttributeError(name)


@cache
def _processor(name: str) -> type:
    op, _, encoded = name.rpartition("_")
    node = json.loads(bytes.fromhex(encoded))
    base = Values if op == "process_values" else Counts
    return type(name, (base,), {"node": node, "__module__": __name__})


@dataclass(frozen=True)
class Elements:
    """A function that returns the elements of an expression for a list."""

    expression: Expression

    def __call__(self, key: str | None, value: Any) -> list[Any]:
        return evaluate(self.expression, key, msgspec.to_builtins(value)) or []


class Values:
    """Changes value, headers and time by the node's expressions, and counts the records of each key."""

    node: Mapping[str, Any]

    def init(self, context: ValueContext) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        counts = self.context.store("counts")
        count = counts.get("records", 0) + 1
        counts.put("records", count)
        value = msgspec.to_builtins(record.value)
        key: Any = record.key
        if isinstance(key, Windowed):
            key = flow.Windowed(key.key, key.start_ms, key.end_ms)

        def lookup(table: str, key: Expression) -> Any:
            return msgspec.to_builtins(self.context.table(table).get(computed(key)))

        more: Mapping[str, Callable[..., Any]] = {
            "ts": lambda: record.time,
            "header": record.headers.text,
            "count_so_far": lambda: count,
            "lookup": lookup,
        }

        def computed(expression: Expression) -> Any:
            return evaluate(expression, key, value, more)

        node = self.node
        if "where" in node and computed(node["where"]) is not True:
            return
        headers = record.headers
        for name in node.get("remove_headers", ()):
            headers = headers.remove(name)
        for name, expression in node.get("set_headers", {}).items():
            headers = headers.set(name, _text(computed(expression)))
        for name, expression in node.get("add_headers", {}).items():
            headers = headers.add(name, _text(computed(expression)))
        new_value = computed(node["value"]) if "value" in node else value
        time = computed(node["ts"]) if "ts" in node else None
        self.context.forward(new_value, time=time, headers=headers)


class Counts:
    """Counts the records of each key, and sends the count at every punctuation."""

    node: Mapping[str, Any]

    def init(self, context: Context | ValueContext) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        if self.node["forward"]:
            self._send(record.key, msgspec.to_builtins(record.value))
        if record.key is None:
            return
        counts = self.context.store("counts")
        counts.put("records", counts.get("records", 0) + 1)
        is_wall = self.node["type"] == "wall_clock"
        self.context.punctuate("count", self.node["every_ms"], clock="wall" if is_wall else "event")

    def on_timer(self, timer: Timer) -> None:
        counts = self.context.store("counts")
        count = counts.get("records")
        if count is not None:
            value = {"n": count, "at": timer.now}
            self._send(timer.key, value, time=timer.now, to=self.node.get("to", "output"))
        if self.node["reset"]:
            counts.delete("records")
            self.context.cancel("count", clock=timer.clock)

    def _send(self, key: Any, value: Any, **options: Any) -> None:
        if isinstance(self.context, ValueContext):
            self.context.forward(value, **options)
        else:
            self.context.forward(key, value, **options)


def _text(value: Any) -> str | None:
    return None if value is None else text(value)
