"""What the handles of streams and tables have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from sluice.errors import TopologyError
from sluice.topology import expressions, nodes
from sluice.topology.author import line
from sluice.topology.serdes import TEXT_FIELD, Serde, Value, is_object, serde_of

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

    def _check(self, text: str, step: str, *, aggregate: bool = False) -> None:
        known = self.fields | self.metadata
        where = f"{self.pipeline.name}: {step} at {line()}"
        try:
            expression = expressions.parse(text)
        except TopologyError as error:
            raise TopologyError(f"{where}: {error.detail}", next_step=error.next_step) from None
        expressions.check(expression, known, where, aggregate=aggregate)

    def _columns(self, picked: tuple[str, ...], named: dict[str, str]) -> dict[str, str]:
        columns = {name: expressions.reference(name) for name in picked} | named
        if taken := columns.keys() & self.metadata.keys():
            raise TopologyError(
                f"{self.pipeline.name}: map_values at {line()}: the names {', '.join(sorted(taken))} are Sluice's own."
            )
        if not columns:
            raise TopologyError(f"{self.pipeline.name}: map_values at {line()} names no field and no function.")
        for text in columns.values():
            self._check(text, "map_values")
        return columns

    def _mapped(self, columns: dict[str, str]) -> Shape:
        return Shape({name: self.fields.get(text, "") for name, text in columns.items()})

    def _sink(self, topic: str, value: Value | None, key: Function | None, **how: Any) -> None:
        self.pipeline.claim("topic", topic)
        encode = None if value is None else self._encoder(topic, serde_of(value))
        self.pipeline.add(nodes.Sink, parent=self.node, topic=topic, encode=encode, encode_key=key, **how)

    def _encoder(self, topic: str, serde: Serde) -> Function:
        """The function that makes a record's bytes; TopologyError if the serde has none for the values here."""
        where = f"{self.pipeline.name}: to({topic!r}) at {line()}"
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
