"""Describes formats whose schemas are in a schema registry, as plain data of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TypeAlias

from sluice.values.registered_schemas import ReferredSchema, SchemaKind, subject_of

SchemaIn: TypeAlias = Literal["prefix", "header"]
Strategy: TypeAlias = Literal["topic", "record", "topic_record"]
Version: TypeAlias = int | Literal["latest"] | None


@dataclass(frozen=True)
class RegistryFormat:
    """How values are read from a topic or written to it. It replaces a serde's functions.

    The engine resolves the schemas, because only runs use the registry.
    """

    kind: SchemaKind
    schema: str = ""
    """The schema of the contract, as text: read from a pulled file, or derived from the class.
    Empty if the class has parts that the format lacks."""
    problem: str = ""
    """The part of the class that the format lacks."""
    advice: str = ""
    """The next step for this problem."""
    record: str = ""
    """The full name of the schema's record."""
    subject: str = ""
    """The subject; if empty, it follows from the strategy."""
    strategy: Strategy = "topic"
    version: Version = None
    """The version with which values are written; None for the version that has `schema`."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """If given, values are written with the latest version that has this metadata."""
    pulled: int = 0
    """The version of the subject that had `schema` when it was pulled; 0 if it was not pulled. A
    run may use another registry, in which versions and ids have other numbers."""
    schema_in: SchemaIn = "prefix"
    """Where written records name their schema. When reading, both places are accepted."""
    registers: bool = False
    """Whether a run registers the schema if the subject does not have it."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`Record.field` → the names that the field had in earlier versions."""
    enum_defaults: Mapping[str, str] = field(default_factory=dict)
    """Name of an enum → the symbol that replaces symbols that the enum's schema lacks."""
    references: tuple[ReferredSchema, ...] = ()
    validates: bool = False
    """Whether JSON is also checked against the registered schema, not only against the contract."""
    is_key: bool = False

    @property
    def is_chosen(self) -> bool:
        """Whether values are written with a version that the author has chosen."""
        return self.version is not None or bool(self.metadata)

    def subject_in(self, topic: str) -> str:
        return self.subject or subject_of(topic, self.record, self.strategy, is_key=self.is_key)

    def __call__(self, data: object) -> NoReturn:
        raise TypeError("the engine reads and writes this format")
