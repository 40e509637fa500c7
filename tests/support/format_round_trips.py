"""Generated records of a format that go through Sluice's encoders and decoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from sluice.engine.publish.encode_registered import RegisteredEncoder
from sluice.engine.read.decode import ValueDecoder
from sluice.plan import plan
from sluice.registry.memory import MemoryRegistry
from sluice.topology import load_pipeline
from sluice.topology.pulled_schemas import write_file
from sluice.values.avro_schemas import Node
from sluice.values.proto_descriptors import message_named
from sluice.values.registered_schemas import RegisteredSchema, SchemaKind
from sluice.values.schema_structs import SchemaText
from tests.support.generated_records import (
    as_text,
    avro_schemas,
    generated,
    generated_message,
    json_schemas,
    proto_schemas,
    resolved,
)

SCHEMAS = {"AVRO": avro_schemas, "PROTOBUF": proto_schemas, "JSON": json_schemas}
_SERDES = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JsonSchema"}
_OWN = 1
"""The place of the contract's version among the schemas."""
_PIPELINE = """
from sluice import Avro, JsonSchema, Pipeline, Protobuf
pipeline = Pipeline("events")
pipeline.stream("events", value=SERDE("events-value"))
"""
_EXACT = (bytes, date, datetime, Decimal)
_encode_json = msgspec.json.Encoder(decimal_format="number").encode


@dataclass
class RoundTrips:
    """Records of three versions of a schema, in turn, and the pipeline that reads the second."""

    kind: SchemaKind
    folder: Path
    count: int
    seed: int = 1
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)

    @cached_property
    def schemas(self) -> list[RegisteredSchema]:
        made: list[RegisteredSchema] = []
        for text in SCHEMAS[self.kind]():
            made.append(self.registry.register("events-value", text, self.kind))
        return made

    @cached_property
    def nodes(self) -> list[Node]:
        return [SchemaText(self.kind, schema.text).node for schema in self.schemas]

    @cached_property
    def values(self) -> list[Any]:
        """The records as plain data; record N is of the version N modulo 3."""
        chosen = Random(self.seed)
        values: list[Any] = []
        for number in range(self.count):
            version = number % 3
            if self.kind == "PROTOBUF":
                descriptor = message_named(self.schemas[version].text, (), "").DESCRIPTOR
                values.append(generated_message(descriptor, chosen))
            else:
                values.append(generated(self.nodes[version], chosen))
        return values

    @cached_property
    def encoders(self) -> list[RegisteredEncoder]:
        return [RegisteredEncoder(schema, in_header=False) for schema in self.schemas]

    @cached_property
    def records(self) -> list[bytes]:
        return [self._encoded(number % 3, value) for number, value in enumerate(self.values)]

    def _encoded(self, version: int, value: Any) -> bytes:
        encoder = self.encoders[version]
        if encoder.takes_json:
            text: Any = _encode_json(value).decode()
            return encoder(text)
        return encoder(value)

    @cached_property
    def decoder(self) -> ValueDecoder:
        pipeline = _PIPELINE.replace("SERDE", _SERDES[self.kind])
        (self.folder / "events.py").write_text(pipeline)
        write_file(self.folder, self.schemas[_OWN])
        (source,) = plan(load_pipeline(self.folder, "events")).job.streams
        return ValueDecoder(source, self.registry)

    @cached_property
    def expected(self) -> list[str]:
        """The values of the contract's version, as texts."""
        reader = self.nodes[_OWN]
        texts: list[str] = []
        for number, value in enumerate(self.values):
            if self.kind != "AVRO" or number % 3 != _OWN:
                value = resolved(reader, self.nodes[number % 3], value)
            texts.append(as_text(reader, value))
        return texts

    def decoded(self, records: Sequence[bytes]) -> list[str]:
        """Return what Sluice decodes, as texts."""
        rows, values, dead_letters = self.decoder.decode([*records])
        assert not dead_letters, dead_letters[0]
        assert rows == [*range(len(records))]
        return [as_text(self.nodes[_OWN], _plain(value)) for value in values]

    def written_again(self) -> list[bytes]:
        """Return the values that Sluice decodes, as Sluice writes them with the contract."""
        _, values, _ = self.decoder.decode([*self.records])
        return [self._encoded(_OWN, _plain(value)) for value in values]


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, builtin_types=_EXACT)
