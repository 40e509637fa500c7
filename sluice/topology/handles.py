"""Handles, through which authors see nodes.

This module has the common base of the handles of streams and tables.

Every Python function is called with the record's value, or with key and value if it takes two
arguments. An aggregating function also takes the current aggregate, before the value. The value is
an instance of the type that the stream declares. A value made by SQL (`select`, `join`) has no
declared type: it is plain JSON data, such as a dict, a list, a str or a number.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from sluice.errors import TopologyError
from sluice.topology import arguments, expressions, nodes
from sluice.topology.author_functions import (
    Function,
    partitioner,
    require_callable,
)
from sluice.topology.durations import Duration
from sluice.topology.expiries import expiry_of
from sluice.topology.graph import Graph
from sluice.topology.registered_outputs import require_writable
from sluice.topology.serdes import Contract, Serde, Value, serde_of, shape_of
from sluice.topology.source_line import source_line
from sluice.topology.structs import Column, column_sql, key_expression, key_field_names
from sluice.topology.table_columns import require_table_columns
from sluice.topology.windowed_inputs import (
    require_encodable_windows,
)
from sluice.values.change_values import encode_debezium
from sluice.values.expiry import Expiry, ExpiryClock
from sluice.values.headers import Headers
from sluice.values.json_text import encode_bytes, encode_text
from sluice.values.record_metadata import (
    CHANGE_METADATA,
    METADATA,
    RESERVED_NAMES,
    STATEFUL_METADATA,
    Emit,
    OnError,
)
from sluice.values.registry_formats import RegistryFormat
from sluice.values.shapes import Shape
from sluice.values.sink_tables import OutputTable
from sluice.values.sql_types import struct_type

V = TypeVar("V")
"""The type of a stream's or a table's values."""
R = TypeVar("R")
"""The type that an author's function returns."""
Key: TypeAlias = Any
"""A record's key: a text or None; after a windowed table, a `Windowed`."""
Partitioner: TypeAlias = (
    Callable[[Any], int] | Callable[[Key, Any], int] | Callable[[Key, Any, Headers], int]
)
"""Gives the number of a record's partition. Takes the record's value as plain JSON data, key and
value, or key, value and headers."""


class Handle(Generic[V]):
    """A node of the pipeline, and the shape of its values.

    `contract` is the type of the values that Python functions get; None for plain JSON data.
    """

    _has_rows = False
    """Whether records are changes of rows, as in a table."""

    def __init__(
        self,
        pipeline: Graph,
        node: nodes.Node,
        shape: Shape,
        contract: Contract | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.node = node
        self.shape = shape
        self.contract = contract

    @property
    def fields(self) -> dict[str, str]:
        """The Spark SQL type of each field of the value; an empty string if it is unknown."""
        return self.shape.fields

    @property
    def metadata(self) -> dict[str, str]:
        """The columns that SQL can read in addition to the value's fields, with their types."""
        if self.node.key_window is not None:
            return STATEFUL_METADATA | CHANGE_METADATA
        if nodes.follows_state(self.node):
            return STATEFUL_METADATA
        return METADATA

    def _where(self, step: str) -> str:
        return f"{self.pipeline.name}: {step} at {source_line()}"

    def _require_same_pipeline(self, where: str, other: Handle[Any]) -> None:
        if other.pipeline is not self.pipeline:
            raise TopologyError(
                f"{where}: the other side belongs to another pipeline, {other.pipeline.name!r}.",
                next_step="Make both sides with the methods of one Pipeline.",
            )

    def _result_shape(
        self, step: str, returns: Contract | None, argument: str = "returns"
    ) -> Shape:
        """Return the shape of a function's result.

        Raises TopologyError if `returns` is not a type that values can have.
        """
        try:
            return shape_of(returns)
        except TopologyError as error:
            raise TopologyError(
                f"{self._where(step)}: {argument}={error.detail}",
                next_step=error.next_step,
            ) from None

    def _require_expression(
        self,
        text: str,
        step: str,
        need: expressions.Need = "",
        *,
        aggregate: bool = False,
    ) -> None:
        """Raise TopologyError unless `text` is SQL over the value's fields, of the needed type."""
        readable = self.fields | self.metadata
        where = self._where(step)
        arguments.require_instance(where, text, str, "an SQL expression (str)")
        expressions.require_valid(text, where, readable, self._types(), need, aggregate=aggregate)

    def _types(self) -> dict[str, str]:
        """Return the types of columns that SQL can read, and of computed fields where known."""
        readable, computed = self.fields | self.metadata, self.node.result_types
        return {name: kind or computed.get(name, "") for name, kind in readable.items()}

    def _expiry(
        self, step: str, at: str | None, after: Duration | None, clock: ExpiryClock
    ) -> Expiry | None:
        """Return when the rows of a table of these records expire; None if they do not."""
        if at is not None:
            self._require_expression(at, step)
        return expiry_of(self._where(step), at, after, clock, self.fields | self.metadata)

    def _columns(
        self,
        step: str,
        picked: tuple[str | Mapping[str, Column], ...],
        named: Mapping[str, Column],
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the SQL of every column, and its type. Nested mappings become structs."""
        columns: dict[str, Column] = {}
        for names in (*picked, named):
            arguments.require_instance(
                self._where(step),
                names,
                (str, Mapping),
                "the name of a field (str), or a mapping",
            )
            columns |= (
                names if isinstance(names, Mapping) else {names: expressions.reference(names)}
            )
        if not columns.keys() - {"_key", "_timestamp"}:
            raise TopologyError(
                f"{self._where(step)} needs at least one column for the new value.",
                next_step="To keep a stream's value, write select_key(...), "
                "with_time(...) or with_headers(...).",
            )
        self._require_columns(step, columns)
        sqls = {name: column_sql(column) for name, column in columns.items()}
        types = {name: self._type(column) for name, column in columns.items()}
        return sqls, types

    def _require_columns(self, step: str, columns: Mapping[str, Column]) -> None:
        self._require_names(step, columns)
        for column in columns.values():
            if isinstance(column, Mapping):
                self._require_columns(step, column)
            else:
                self._require_expression(column, step)

    def _type(self, column: Column) -> str:
        if isinstance(column, Mapping):
            return struct_type({name: self._type(part) for name, part in column.items()})
        return self.fields.get(column, "")

    def _key_expression(self, step: str, key: str | Sequence[str]) -> str:
        """Return SQL of a key that is an expression, or a list of fields."""
        if isinstance(key, str) or not isinstance(key, Sequence):
            return key
        fields = key_field_names(self._where(step), key)
        unknown = [name for name in fields if name not in self.fields]
        if unknown:
            raise TopologyError(
                f"{self._where(step)}: there is no field {unknown[0]!r}.",
                next_step=f"The fields: {', '.join(self.fields)}.",
            )
        return key_expression(fields) or ""

    def _refuse_reserved_names(self, step: str, columns: Mapping[str, str]) -> None:
        if reserved := columns.keys() & RESERVED_NAMES:
            raise TopologyError(
                f"{self._where(step)}: "
                f"the names {', '.join(sorted(reserved))} are reserved by Sluice.",
                next_step="Give the column another name.",
            )

    def _require_names(self, step: str, columns: Mapping[str, Column]) -> None:
        """Raise TopologyError if Spark SQL cannot tell two field names of an object apart."""
        for name in columns:
            arguments.require_instance(self._where(step), name, str, "the name of a column (str)")
            if not name:
                raise TopologyError(
                    f"{self._where(step)}: a column has no name.", next_step="Name each column."
                )
            # UTF-8 has no surrogates, so neither Kafka nor a database could store the name.
            if any(unicodedata.category(sign) == "Cs" for sign in name):
                raise TopologyError(
                    f"{self._where(step)}: the name {name!r} has an unpaired surrogate.",
                    next_step="Correct the name.",
                )
        if twins := arguments.first_twins(columns, str.lower):
            raise TopologyError(
                f"{self._where(step)}: the columns {' and '.join(twins)} differ only in case, "
                "which Spark SQL ignores.",
                next_step="Rename one of them.",
            )

    def _sink(
        self,
        to: str | OutputTable,
        value: Value[Any] | None,
        key: Function | None,
        partition: Function | None = None,
        **options: Any,
    ) -> None:
        if isinstance(to, OutputTable):
            self._table_sink(to, value, key or partition, **options)
            return
        where = self._where(f"to({to!r})")
        cycle = options.get("cycle", False)
        arguments.require_instance(where, cycle, bool, "cycle=True or cycle=False")
        if cycle:
            self._require_cycle(where, to)
            self.pipeline.claim("cycle", to)
        else:
            self.pipeline.claim("topic", to)
        encode = None if value is None else self._encoder(where, serde_of(value))
        for name, function in (("value", encode), ("key", key)):
            if function is not None:
                require_callable(where, function, name)
        require_encodable_windows(where, key, self.node)
        arguments.require_choice(where, "emit", options.get("emit", "every"), Emit)
        if partition is not None:
            partition = partitioner(where, partition)
        self.pipeline.add(
            nodes.Sink,
            parent=self.node,
            topic=to,
            encode=encode,
            encode_key=key,
            partition=partition,
            **options,
        )

    def _require_cycle(self, where: str, topic: str) -> None:
        """Raise TopologyError unless the pipeline reads and writes the topic.

        The pipeline must write the topic in the transaction of each batch.
        """
        sources = self.pipeline.nodes_of(nodes.Source)
        if topic not in [source.topic for source in sources]:
            raise TopologyError(
                f"{where}: cycle=True, but the pipeline does not read {topic}.",
                next_step="Leave cycle= out, or read the topic first.",
            )

    def _table_sink(
        self,
        table: OutputTable,
        value: Value[Any] | None,
        key: Function | None,
        *,
        on_error: OnError | None,
        emit: Emit = "every",
        cycle: bool = False,
    ) -> None:
        where = self._where(f"to({table.name!r})")
        is_of_topic = value is not None or key is not None or emit != "every" or cycle
        if is_of_topic:
            raise TopologyError(
                f"{where}: value=, key=, partition=, emit= and cycle= apply only to topics.",
                next_step="Leave them out, and change the columns with select(...) first.",
            )
        if table.key is None and self._has_rows:
            raise TopologyError(
                f"{where}: a table's changes need a column for the key.",
                next_step="Write for example "
                f'{type(table).__name__}({table.name!r}, ..., key="id").',
            )
        is_windowed = self.node.key_window is not None
        require_table_columns(where, table, self.fields, is_windowed=is_windowed)
        self.pipeline.claim("table", table.output)
        # A table with a key has one row per key, so only a key's last change in a batch is written.
        changes_written: Emit = "every" if table.key is None else "latest"
        self.pipeline.add(
            nodes.Sink,
            parent=self.node,
            topic=table.output,
            table=table,
            fields=dict(self.fields),
            scalar=self.shape.scalar,
            emit=changes_written,
            on_error=on_error,
        )

    def _encoder(self, where: str, serde: Serde[Any]) -> Function:
        if serde.is_text and not self.shape.scalar:
            raise TopologyError(
                f"{where}: value=str cannot write an object.",
                next_step="Turn it into a single value first with map_values('...').",
            )
        if serde.encode is None and serde.is_bytes:
            self._require_bytes(where)
            return encode_bytes
        if serde.encode is None and not serde.is_text:
            raise TopologyError(
                f"{where}: the serde of {serde.name} has no encode function.",
                next_step="Give a Serde with encode=, or leave value= out to write JSON.",
            )
        if (
            serde.encode is encode_debezium
            and self.shape.kind
            and not {"kind", "old", "new"} <= self.fields.keys()
        ):
            raise TopologyError(
                f"{where}: value=debezium(...) needs values with the fields kind, old and new.",
                next_step="Write the changes of a table: table.changes().to(...).",
            )
        if isinstance(serde.encode, RegistryFormat):
            shape = self.node.result_shape
            require_writable(where, serde, shape.fields, is_scalar=shape.scalar)
        return serde.encode or encode_text

    def _require_bytes(self, where: str) -> None:
        kind = self.node.result_shape.kind
        if kind != "BINARY":
            raise TopologyError(
                f"{where}: value=bytes writes bytes, but the values are "
                f"{kind or 'of an unknown type'}.",
                next_step="Turn them into bytes first, for example with "
                "map_values(\"encode(text, 'UTF-8')\").",
            )


def joined_shape(left: Handle[Any], right: Handle[Any]) -> Shape:
    return Shape({"left": left.shape.kind, "right": right.shape.kind})
