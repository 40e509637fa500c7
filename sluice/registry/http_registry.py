"""A schema registry with Confluent's API, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sluice.errors import Refused, RegistryAway, SettingsError, missing_extra
from sluice.registry.registry import UnknownSchemaError
from sluice.settings import masked
from sluice.support.masking import secrets_of_settings, without_log_in
from sluice.values.registered_schemas import (
    ReferredSchema,
    RegisteredSchema,
    SchemaKind,
    SchemaRef,
)

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

_NOT_FOUND = range(40_400, 40_500)
"""The registry's error codes for an unknown subject, version or schema. A wrong address gives other
codes."""
_INVALID = (422, 409)
_PATIENCE = {"timeout": 10, "max.retries": 3, "retries.wait.ms": 500, "retries.max.wait.ms": 2_000}
"""How long the client tries before it raises RegistryAway. The user's settings take precedence."""
_NUMBERS = (*_PATIENCE, "cache.capacity", "cache.latest.ttl.sec")
_PREFIX_OF_CONTEXT = ":."


@dataclass(frozen=True)
class HttpRegistry:
    """A registry with the settings of Confluent's client: `url`, `basic.auth.user.info` and so on.

    Schemas are cached in each process, because an id never means another schema.
    """

    settings: Mapping[str, str] = field(repr=False)

    def schema(self, ref: SchemaRef, subject: str = "") -> RegisteredSchema:
        return _schema(_frozen(self.settings), ref, _context(subject))

    def version(self, subject: str, version: int | str = "latest") -> RegisteredSchema:
        with self._errors() as client:
            if version == "latest":
                client.clear_latest_caches()  # type: ignore[no-untyped-call]
                return self._registered(client, client.get_latest_version(subject))
            return self._registered(client, client.get_version(subject, int(version)))

    def with_metadata(self, subject: str, metadata: dict[str, str]) -> RegisteredSchema:
        with self._errors() as client:
            client.clear_latest_caches()  # type: ignore[no-untyped-call]
            return self._registered(client, client.get_latest_with_metadata(subject, metadata))

    def find(self, subject: str, text: str, kind: SchemaKind) -> RegisteredSchema | None:
        try:
            with self._errors() as client:
                found = client.lookup_schema(subject, _as_sent(text, kind))
                return self._registered(client, found)
        except UnknownSchemaError:
            return None

    def register(self, subject: str, text: str, kind: SchemaKind) -> RegisteredSchema:
        with self._errors() as client:
            client.register_schema(subject, _as_sent(text, kind))
        found = self.find(subject, text, kind)
        assert found is not None, "the schema has just been registered"
        return found

    def is_compatible(self, subject: str, text: str, kind: SchemaKind) -> bool:
        try:
            with self._errors() as client:
                return bool(client.test_compatibility(subject, _as_sent(text, kind)))
        except UnknownSchemaError:
            # A subject without versions accepts every schema.
            return True

    @contextmanager
    def _errors(self) -> Iterator[SchemaRegistryClient]:
        with registry_errors(self.settings):
            yield _client(_frozen(self.settings))

    @staticmethod
    def _registered(client: SchemaRegistryClient, found: Any) -> RegisteredSchema:
        return _registered(
            client,
            found.schema,
            found.schema_id,
            found.subject,
            found.version,
            found.guid or "",
        )


NO_REGISTRY = HttpRegistry({})
"""The registry if the settings name none. Every use of it raises SettingsError."""

_Frozen = tuple[tuple[str, str], ...]


def _frozen(settings: Mapping[str, str]) -> _Frozen:
    return tuple(sorted(settings.items()))


@cache
def _client(frozen: _Frozen) -> SchemaRegistryClient:
    """Return this process's client for the settings.

    Raises SettingsError if they are invalid, or if packages are missing.
    """
    settings = dict(frozen)
    if not settings.get("url"):
        raise SettingsError(
            "No schema registry is set, but a topic's format needs one.",
            next_step="""Set SLUICE_REGISTRY='{"url": "http://HOST:8081"}', or in Airflow the """
            "connection schema_registry_default.",
        )
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise missing_extra(error) from None
    configuration: dict[str, Any] = {**_PATIENCE, **settings}
    for name in _NUMBERS:
        if isinstance(text := configuration.get(name), str):
            configuration[name] = float(text) if "." in text else int(text)
    try:
        return SchemaRegistryClient(configuration)
    except (TypeError, ValueError, OSError) as error:
        raise SettingsError(
            f"The settings of the schema registry are invalid: {masked(str(error))}.",
            next_step="Correct SLUICE_REGISTRY, or the connection in Airflow.",
        ) from None


@cache
def _schema(frozen: _Frozen, ref: SchemaRef, context: str) -> RegisteredSchema:
    """Return a schema. If `ref` is an id, the schema has one of its subjects, for messages."""
    with registry_errors(dict(frozen)):
        client = _client(frozen)
        if isinstance(ref, UUID):
            found = client.get_schema_by_guid(str(ref))
            return _registered(client, found, 0, guid=str(ref))
        found = client.get_schema(ref, subject_name=context or None)
        subject, version = _place(client, ref, context)
        return _registered(client, found, ref, subject, version)


def _registered(
    client: SchemaRegistryClient,
    found: Any,
    schema_id: int,
    subject: str = "",
    version: int = 0,
    guid: str = "",
) -> RegisteredSchema:
    """Convert a schema of Confluent's client to Sluice's type, with its references."""
    return RegisteredSchema(
        id=schema_id,
        text=found.schema_str,
        kind=found.schema_type or "AVRO",
        subject=subject,
        version=version,
        guid=guid,
        references=_references(client, found),
    )


def _place(client: SchemaRegistryClient, schema_id: int, context: str) -> tuple[str, int]:
    """Return a subject and a version that have the schema; empty and 0 if they are unknown."""
    try:
        places = client.get_schema_versions(schema_id, subject_name=context or None)
        return (places[0].subject or "", places[0].version or 0) if places else ("", 0)
    except Exception:  # without them, messages are only less exact
        return "", 0


def _references(client: SchemaRegistryClient, schema: Any) -> tuple[ReferredSchema, ...]:
    """Return the schemas to which a schema refers. Each occurs once, after its own references."""
    referred: dict[ReferredSchema, None] = {}
    for reference in schema.references or ():
        found: Any = client.get_version(reference.subject, reference.version).schema
        referred |= dict.fromkeys(_references(client, found))
        referred[ReferredSchema(reference.name, found.schema_str)] = None
    return tuple(referred)


def _as_sent(text: str, kind: SchemaKind) -> Any:
    from confluent_kafka.schema_registry import Schema

    return Schema(text, kind)


def _context(subject: str) -> str:
    """Return the subject if it is in a named context, such as `:.eu:orders-value`."""
    return subject if subject.startswith(_PREFIX_OF_CONTEXT) else ""


@contextmanager
def registry_errors(settings: Mapping[str, str]) -> Iterator[None]:
    """Turn an error of Confluent's client into UnknownSchemaError, Refused or RegistryAway."""
    try:
        yield
    except (UnknownSchemaError, SettingsError, RegistryAway):
        raise
    except Exception as error:
        code = getattr(error, "error_code", None)
        status = getattr(error, "http_status_code", None)
        secrets = secrets_of_settings(settings)
        message = masked(str(getattr(error, "error_message", error)) or repr(error), secrets)
        if code in _NOT_FOUND:
            raise UnknownSchemaError(message) from None
        if status in _INVALID:
            raise Refused(
                f"The schema registry refuses the schema: {message[:500]}.",
                next_step="Correct the schema, or change the subject's rule of compatibility.",
            ) from None
        reason = message if status is None else f"it answers {status}: {message}"
        raise RegistryAway.of(without_log_in(settings.get("url", "")), reason[:300]) from None
