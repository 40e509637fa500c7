"""Steps that compute each row on its own, without state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from typing_extensions import override

from sluice.topology.nodes.node import ChildNode, Node, RowStep
from sluice.topology.serdes import Contract
from sluice.topology.value_types import (
    common_shape,
    declared_type,
    shape_of_expression,
    types_of_columns,
)
from sluice.values.call_parameters import FunctionBatch
from sluice.values.function_wrappers import NoTopic
from sluice.values.record_metadata import Gives
from sluice.values.shapes import Shape
from sluice.values.windows import AnyWindow


@dataclass(frozen=True, eq=False)
class Filter(RowStep):
    """Keeps the records for which `where` is true; a table's other rows are deleted."""

    where: str

    is_filter = True

    @override
    def _expressions(self) -> str:
        return self.where


@dataclass(frozen=True, eq=False)
class Expect(ChildNode):
    """Counts the records for which `condition` is not true. No step follows it."""

    condition: str
    label: str
    at_most: float
    fails: bool

    @override
    def _expressions(self) -> str:
        limit = f"{self.at_most:.2%}" if isinstance(self.at_most, float) else f"{self.at_most:,}"
        return f"{self.condition}, at most {limit} otherwise"


@dataclass(frozen=True, eq=False)
class Repartition(Filter):
    """Drops the records without a key, unless a left or outer join follows."""

    where: str = "_key IS NOT NULL"

    @override
    def _expressions(self) -> str:
        return ""


@dataclass(frozen=True, eq=False)
class Select(RowStep):
    """Replaces the value with columns, each an expression over the old fields."""

    columns: dict[str, str]

    needs_last_change_only = True

    @override
    def _result_shape(self) -> Shape:
        return Shape(types_of_columns(self.columns, self.readable_types))

    @override
    def _expressions(self) -> str:
        texts: list[str] = []
        for name, sql in self.columns.items():
            is_unchanged = name == sql
            texts.append(name if is_unchanged else f"{name} = {sql}")
        return ", ".join(texts)


@dataclass(frozen=True, eq=False)
class MapValues(RowStep):
    """Replaces the value with the result of an expression; later steps read it as `value`."""

    value: str

    @override
    def _result_shape(self) -> Shape:
        return shape_of_expression(self.value, self.readable_types)

    @override
    def _expressions(self) -> str:
        return self.value


@dataclass(frozen=True, eq=False)
class SelectKey(ChildNode):
    """Replaces the key with the result of an expression, as text."""

    key: str

    keeps_keys = False

    @override
    def _expressions(self) -> str:
        return self.key


@dataclass(frozen=True, eq=False)
class Apply(RowStep):
    """Calls a Python function with key and value.

    `gives` is the kind of its result: a `value`, many `values`, a `key`, a `mapped_key` (the key to
    look up in a global table), a `record` (key and value), many `records`, a `condition`, or
    `nothing`.
    """

    function: Callable[..., Any]
    gives: Gives
    takes: Contract | None
    """The type of the value passed to the function; None for plain JSON data."""
    returns: Contract | None
    shape: Shape
    """The shape of the resulting value."""
    batch: FunctionBatch | None = None
    """How one call takes many values; None for a function of one value."""

    @property
    @override
    def keeps_keys(self) -> bool:
        return self.gives not in ("key", "record", "records")

    @property
    @override
    def is_filter(self) -> bool:
        return self.gives == "condition"

    @property
    @override
    def is_peek(self) -> bool:
        return self.gives == "nothing"

    @override
    def _result_shape(self) -> Shape:
        return self.shape

    @property
    @override
    def author_functions(self) -> tuple[Any, ...]:
        return () if self.is_peek else (self.function,)

    @property
    @override
    def title(self) -> str:
        if isinstance(self.function, NoTopic):
            return "route"
        if self.is_peek:
            return "peek"
        if self.batch is not None:
            return "Python function for many values"
        return f"Python function for {self.gives.replace('_', ' ')}"

    @override
    def _expressions(self) -> str:
        return getattr(self.function, "__name__", "")

    @property
    @override
    def declared_types(self) -> str:
        fields = [f"{name} {sql_type}" for name, sql_type in self.shape.fields.items()]
        return f"({declared_type(self.takes)}) gives {', '.join(fields)}"


@dataclass(frozen=True, eq=False)
class Transform(ChildNode):
    """Replaces the value with the columns that a function from DataFrame to DataFrame computes."""

    function: Callable[..., Any]
    fields: dict[str, str]

    @override
    def _result_shape(self) -> Shape:
        return Shape(self.fields)

    @property
    @override
    def author_functions(self) -> tuple[Any, ...]:
        return (self.function,)

    @override
    def _expressions(self) -> str:
        return getattr(self.function, "__name__", "")


@dataclass(frozen=True, eq=False)
class FlatMapValues(ChildNode):
    """Emits a record for each element of an array. A struct element becomes the value."""

    items: str
    shape: Shape
    """The shape of the elements, which are objects if they are structs of a known type."""

    @override
    def _result_shape(self) -> Shape:
        return self.shape

    @override
    def _expressions(self) -> str:
        return self.items


@dataclass(frozen=True, eq=False)
class Merge(Node):
    """Combines the records of several streams."""

    streams: tuple[Node, ...]

    @property
    @override
    def parents(self) -> tuple[Node, ...]:
        return self.streams

    @override
    def with_parents(self, others: Mapping[Node, Node]) -> Self:
        return replace(self, streams=tuple([others[stream] for stream in self.streams]))

    @property
    @override
    def passes_on_keys_of(self) -> tuple[Node, ...]:
        return self.streams

    @property
    @override
    def key_window(self) -> AnyWindow | None:
        return self.streams[0].key_window

    @override
    def _result_shape(self) -> Shape:
        return common_shape([stream.result_shape for stream in self.streams])
