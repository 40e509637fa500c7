"""Compares the topics of a pipeline with a schema registry, and registers their schemas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from sluice.engine.publish.encode_registered import schema_in_registry
from sluice.engine.read.registered_values import ProtoReader
from sluice.errors import SchemasDiffer, error_text
from sluice.plan import Job, Source
from sluice.registry.registry import Registry, UnknownSchemaError
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.values import avro_schemas
from sluice.values.avro_schemas import SchemaError
from sluice.values.avro_values import Aliases, MismatchError, converter
from sluice.values.contracts import type_info
from sluice.values.json_compatibility import json_problem
from sluice.values.json_schemas import parse_json_schema
from sluice.values.registered_schemas import RegisteredSchema
from sluice.values.registry_formats import RegistryFormat
from sluice.values.topic_patterns import is_pattern

Verdict: TypeAlias = Literal["right", "missing", "wrong"]


@dataclass(frozen=True)
class RegisteredTopic:
    """A topic whose schemas are in the registry."""

    topic: str
    is_read: bool
    format: RegistryFormat
    contract: Any
    """The type of the values that are read; None for a topic that is written."""

    @property
    def subject(self) -> str:
        return self.format.subject_in(self.topic)


@dataclass(frozen=True)
class Comparison:
    """Whether the registry has what a topic of a pipeline needs."""

    topic: RegisteredTopic
    version: str
    """The version that was compared; empty if the subject has no schema."""
    verdict: Verdict
    detail: str = ""

    @property
    def problem(self) -> str:
        """Return the topic, its subject and what is wrong with it; empty if nothing is wrong."""
        if self.verdict == "right":
            return ""
        return f"{self.topic.topic} ({self.topic.subject}): {self.detail}"


def registered_topics(job: Job) -> list[RegisteredTopic]:
    """Return the topics of a job whose schemas are in a registry. Patterns are left out."""
    topics: list[RegisteredTopic] = []
    for source, of_source in job.registered_sources():
        if not is_pattern(source.topic):
            contract = _contract(source)
            topics.append(RegisteredTopic(source.topic, True, of_source, contract))
    for sink, of_sink in job.registered_sinks():
        topics.append(RegisteredTopic(sink.topic, False, of_sink, None))
    return list({(topic.topic, topic.is_read): topic for topic in topics}.values())


def _contract(source: Source) -> Any:
    return str if source.contract is None else source.value_class


def compare(job: Job, registry: Registry) -> Iterator[Comparison]:
    """Yield whether the registry has what each topic needs. Raises RegistryAway."""
    for topic in registered_topics(job):
        yield _compare_read(topic, registry) if topic.is_read else _compare_written(topic, registry)


def _compare_read(topic: RegisteredTopic, registry: Registry) -> Comparison:
    try:
        newest = registry.version(topic.subject)
    except UnknownSchemaError:
        return Comparison(topic, "", "missing", "the registry does not have the subject")
    version = str(newest.version)
    problem = problem_of_reading(topic, newest)
    return Comparison(topic, version, "wrong" if problem else "right", problem)


def problem_of_reading(topic: RegisteredTopic, schema: RegisteredSchema) -> str:
    """Return why values of a schema cannot be read; empty if they can."""
    if schema.kind != topic.format.kind:
        return f"it is a schema of {schema.kind}, not of {topic.format.kind}"
    if schema.kind == "JSON":
        try:
            node = parse_json_schema(schema.text, schema.references)
        except SchemaError:
            # JSON is read by the contract alone, so a schema without SQL types does no harm.
            return ""
        return json_problem(node, topic.contract)
    if schema.kind == "PROTOBUF":
        try:
            ProtoReader(schema, topic.contract)
        except (SchemaError, MismatchError) as error:
            return error_text(error)
        return ""
    try:
        node = avro_schemas.parse(schema.text, schema.references)
        converter(node, type_info(topic.contract), Aliases.of(topic.format))
    except (SchemaError, MismatchError) as error:
        return error_text(error)
    return ""


def _compare_written(topic: RegisteredTopic, registry: Registry) -> Comparison:
    values, subject = topic.format, topic.subject
    try:
        if values.version is not None:
            return Comparison(
                topic, str(registry.version(subject, values.version).version), "right"
            )
        if values.metadata:
            found = registry.with_metadata(subject, dict(values.metadata))
            return Comparison(topic, str(found.version), "right")
    except UnknownSchemaError:
        return Comparison(topic, "", "missing", "the registry does not have the version")
    known = schema_in_registry(values, subject, registry)
    if known is not None:
        return Comparison(topic, str(known.version), "right")
    if registry.is_compatible(subject, values.schema, values.kind):
        return Comparison(topic, "", "missing", "register it with sluice schema push")
    return Comparison(topic, "", "wrong", "the subject's rule of compatibility refuses the schema")


def note(ledger: Ledger, pipeline: str, comparisons: Iterable[Comparison]) -> None:
    """Record the failure `schemas` if a topic and the registry do not match; else clear it.

    The page and the metrics show the record, so they never ask the registry.
    """
    problems = [each.problem for each in comparisons if each.problem]
    if not problems:
        ledger.failures.clear(pipeline, "schemas")
        return
    compared = f"Compared on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    error = SchemasDiffer(f"{compared}: {'; '.join(problems)}.")
    ledger.failures.keep(Failure.of(error, pipeline, kind="schemas"))


def push(job: Job, registry: Registry) -> Iterator[tuple[RegisteredTopic, RegisteredSchema]]:
    """Register the schemas that follow from a job's contracts, for the topics that it writes.

    Raises Refused for a schema that is not compatible with the subject's versions.
    """
    for topic in registered_topics(job):
        values = topic.format
        is_chosen = values.version is not None or values.metadata or values.pulled
        if not topic.is_read and not is_chosen:
            yield topic, registry.register(topic.subject, values.schema, values.kind)
