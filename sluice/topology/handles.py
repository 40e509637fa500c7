"""What the handles of streams and tables have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from sluice.errors import TopologyError
from sluice.topology import checks, expressions, kinds, nodes
from sluice.topology.author import line
from sluice.topology.serdes import TEXT_FIELD, Serde, Value, fields_of, is_object, serde_of

if TYPE_CHECKING:
    from sluice.topology.pipeline import Pipeline

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Shape:
    """What is known of a value: its fields with their types (empty if unknown), and its Python type if it has one."""

    fields: dict[str, str]
    contract: type | None = None
    scalar: bool = False
    """The value is no object: its one field `value` is the value itself."""

    @property
    def kind(self) -> str:
        """The type of the whole value, with what is known of its fields; empty if nothing is."""
        if self.scalar:
            return self.fields.get(TEXT_FIELD, "")
        inner = ", ".join(f"{expressions.quoted(name)}: {kind}" for name, kind in self.fields.items())
        return f"STRUCT<{inner}>" if inner else ""

    @classmethod
    def joined(cls, left: Shape, right: Shape) -> Shape:
        """The shape of a join's results."""
        return cls({"left": left.kind, "right": right.kind})

    @classmethod
    def of(cls, contract: type | None, fields: dict[str, str]) -> Shape:
        """The shape of values of a declared type; of None nothing is known."""
        return cls(fields, contract, scalar=not is_object(contract))


class Handle:
    """A node of the pipeline, and the shape of the values there."""

    metadata: ClassVar[dict[str, str]] = expressions.METADATA
    """What expressions may use beside the fields."""

    def __init__(self, pipeline: Pipeline, node: nodes.Node, shape: Shape) -> None:
        self.pipeline = pipeline
        self.node = node
        self.shape = shape

    @property
    def fields(self) -> dict[str, str]:
        """The fields that an expression may use here, each with its Spark SQL type if that is known."""
        return self.shape.fields

    def _where(self, step: str) -> str:
        return f"{self.pipeline.name}: {step} at {line()}"

    def _together(self, where: str, other: Handle) -> None:
        if other.pipeline is not self.pipeline:
            raise TopologyError(f"{where}: the other one is of another pipeline, {other.pipeline.name!r}.")

    def _returned(self, step: str, returns: type | None) -> Shape:
        """The shape of what a function returns; TopologyError if `returns` is no type of values."""
        try:
            return Shape.of(returns, fields_of(returns))
        except TopologyError as error:
            raise TopologyError(f"{self._where(step)}: returns={error.detail}", next_step=error.next_step) from None

    def _check(self, text: str, step: str, need: kinds.Need = "", *, aggregate: bool = False) -> None:
        known = self.fields | self.metadata
        where = self._where(step)
        checks.instance(where, text, str, "Write an expression of Spark SQL as a text, such as 'amount > 1'.")
        try:
            expression = expressions.parse(text)
        except TopologyError as error:
            raise TopologyError(f"{where}: {error.detail}", next_step=error.next_step) from None
        expressions.check(expression, known, where, aggregate=aggregate)
        kinds.require(text, known, where, need)

    def _columns(self, picked: tuple[Any, ...], named: dict[str, str]) -> dict[str, str]:
        where = self._where("map_values")
        for text in (*picked, *named.values()):
            checks.instance(where, text, str, "Take one function alone, or names of fields and name='expression'.")
        columns = {name: expressions.reference(name) for name in picked} | named
        if taken := columns.keys() & self.metadata.keys():
            raise TopologyError(f"{where}: the names {', '.join(sorted(taken))} are Sluice's own.")
        if not columns:
            raise TopologyError(f"{where} names no field and no function.")
        for text in columns.values():
            self._check(text, "map_values")
        return columns

    def _mapped(self, columns: dict[str, str]) -> Shape:
        return Shape({name: self.fields.get(text, "") for name, text in columns.items()})

    def _sink(self, topic: str, value: Value | None, key: Function | None, **how: Any) -> None:
        where = self._where(f"to({topic!r})")
        self.pipeline.claim("topic", topic)
        encode = None if value is None else self._encoder(where, serde_of(value))
        for name, function in (("value", encode), ("key", key)):
            if function is not None:
                checks.callable_with(where, function, name)
        checks.choice(where, "delivery", how["delivery"], nodes.Delivery)
        self.pipeline.add(nodes.Sink, parent=self.node, topic=topic, encode=encode, encode_key=key, **how)

    def _encoder(self, where: str, serde: Serde) -> Function:
        """The function that makes a record's bytes; TopologyError if the serde has none for the values here."""
        if serde.is_text and not self.shape.scalar:
            raise TopologyError(
                f"{where}: the value is an object, not a text.", next_step="Make one with map_value('...')."
            )
        if serde.encode is None and not serde.is_text:
            raise TopologyError(
                f"{where}: {serde.contract!r} has no function that encodes.",
                next_step="Give a Serde with encode=, or leave value= out for JSON.",
            )
        return serde.encode or _encode_text


def _encode_text(value: Any) -> bytes:
    return str(value).encode()


def one_value(text_type: str = "") -> Shape:
    """The shape of a value that is no object."""
    return Shape({TEXT_FIELD: text_type}, scalar=True)
