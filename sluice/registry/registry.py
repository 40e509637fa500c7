"""The operations that Sluice needs from a schema registry."""

from __future__ import annotations

from typing import Protocol

from sluice.values.registered_schemas import RegisteredSchema, SchemaKind, SchemaRef


class UnknownSchemaError(LookupError):
    """The registry has no such schema, subject or version."""


class Registry(Protocol):
    """A schema registry.

    All methods raise RegistryAway if the registry does not answer, or refuses the request.
    """

    def schema(self, ref: SchemaRef, subject: str = "") -> RegisteredSchema:
        """Return a schema by its id or GUID. Raises UnknownSchemaError.

        `subject` names the context of the id. It need not be a subject of the schema.
        """

    def version(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        """Return a version of a subject. Raises UnknownSchemaError."""

    def with_metadata(self, subject: str, metadata: dict[str, str]) -> RegisteredSchema:
        """Return the latest version of a subject that has the metadata.

        Raises UnknownSchemaError.
        """

    def find(self, subject: str, text: str, kind: SchemaKind) -> RegisteredSchema | None:
        """Return the version of a subject that has this schema; None if no version has it."""

    def register(self, subject: str, text: str, kind: SchemaKind) -> RegisteredSchema:
        """Register a schema as a subject's next version, unless the subject has it.

        Raises Refused if it is not compatible with earlier versions, and SchemaError if it is
        invalid.
        """

    def is_compatible(self, subject: str, text: str, kind: SchemaKind) -> bool:
        """Return whether a schema may become a subject's next version, by the subject's rules."""
