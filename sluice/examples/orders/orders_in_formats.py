"""The orders example with a schema registry: the pipeline's file, samples and results in a format.

The records are written and read by `fastavro` and by Protobuf's own library, so Sluice's reading
and writing is compared with other implementations.
"""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from sluice.errors import missing_extra
from sluice.examples.example import Example, Results, Sample, json_bytes
from sluice.examples.orders.orders_example import EXAMPLE
from sluice.plan import plan
from sluice.registry.registry import Registry
from sluice.topology import load_pipeline
from sluice.values.proto_descriptors import message_classes
from sluice.values.registered_schemas import RegisteredSchema, named_schema, prefix

_OTHER_FILES = ("orders_routes.py", "orders_panel.js")
_CLASSES = '''
class OrderAmount(Struct):
    """The amount of an order."""

    locationId: str
    finalAmount: Decimal2


class TotalRevenue(Struct):
    """The orders of a store."""

    locationId: str
    runnuingOrderCount: int
    runningRevenue: Annotated[Decimal, Digits(22, 2)]


class StoreRevenue(Struct):
    """The orders of a store, with its address."""

    totalRevenue: TotalRevenue
    store: Store


pipeline = Pipeline('''
_EDITS = (
    ("import datetime\n", "import datetime\nfrom decimal import Decimal\n"),
    ("import Literal", "import Annotated, Literal"),
    ("from sluice import Decimal2", "from sluice import SERDE, Decimal2, Digits"),
    ("value=Order,", "value=SERDE(Order),"),
    ("value=Store,", "value=SERDE(Store),"),
    ('_orders")\n', '_orders", value=SERDE(OrderAmount))\n'),
    ('_orders_revenue")\n', '_orders_revenue", value=SERDE(StoreRevenue))\n'),
    ("\npipeline = Pipeline(", _CLASSES),
)  # fmt: skip
"""The changes to the pipeline's file: text → its replacement."""


class Codec(Protocol):
    """Writes and reads a format without using Sluice."""

    serde: str
    """The name of Sluice's serde."""

    def require_packages(self) -> None:
        """Raise SettingsError if packages of the extra `registry` are missing."""

    def write(self, schema: RegisteredSchema, text: bytes) -> bytes:
        """Encode a JSON text in the format.

        In a record, the schema's id precedes the result. Raises ValueError for JSON that the format
        cannot hold.
        """

    def read(self, schema: RegisteredSchema, data: bytes) -> dict[str, Any]:
        """Return the fields of a record."""

    def as_json(self, schema: RegisteredSchema, data: bytes) -> bytes:
        """Return the JSON that a record was made from."""


class _Avro:
    serde = "Avro"

    def require_packages(self) -> None:
        try:
            import fastavro  # noqa: F401  (only tried)
        except ImportError as error:
            raise missing_extra(error) from None

    def write(self, schema: RegisteredSchema, text: bytes) -> bytes:
        import fastavro

        buffer = io.BytesIO()
        try:
            value = json.loads(text, parse_float=Decimal, object_hook=_with_times)
            fastavro.schemaless_writer(buffer, _parsed(schema.text), value)
        except (TypeError, ArithmeticError, AttributeError) as error:
            raise ValueError(error) from None
        return buffer.getvalue()

    def read(self, schema: RegisteredSchema, data: bytes) -> dict[str, Any]:
        import fastavro

        value = fastavro.schemaless_reader(io.BytesIO(data), _parsed(schema.text), None)
        assert isinstance(value, dict)
        return value

    def as_json(self, schema: RegisteredSchema, data: bytes) -> bytes:
        return json_bytes(_with_texts(self.read(schema, data)))


@cache
def _parsed(text: str) -> Any:
    import fastavro

    return fastavro.parse_schema(json.loads(text))


class _Protobuf:
    serde = "Protobuf"

    def require_packages(self) -> None:
        try:
            from google.protobuf import json_format  # noqa: F401  (only tried)
        except ImportError as error:
            raise missing_extra(error) from None

    def write(self, schema: RegisteredSchema, text: bytes) -> bytes:
        from google.protobuf import json_format

        (message, *_) = message_classes(schema.text)
        value = json.loads(text, parse_float=str, object_hook=_with_zones)
        # Protobuf would write an order without a location as an order with the location "".
        names = {field.name for field in message.DESCRIPTOR.fields}
        if not isinstance(value, dict) or value.keys() != names:
            raise ValueError("the fields are not those of the message")
        try:
            written: bytes = json_format.ParseDict(value, message()).SerializeToString()
        except (json_format.ParseError, TypeError, AttributeError) as error:
            raise ValueError(error) from None
        # The schema's first message: Confluent's format gives its index as a single zero byte.
        return b"\0" + written

    def read(self, schema: RegisteredSchema, data: bytes) -> dict[str, Any]:
        (message, *_) = message_classes(schema.text)
        return _fields(message.FromString(data[1:]))

    def as_json(self, schema: RegisteredSchema, data: bytes) -> bytes:
        return json_bytes(_with_texts(self.read(schema, data)))


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields of a message. Protobuf has no decimals, so amounts are texts there."""
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name in _AMOUNTS:
            fields[field.name] = Decimal(value or 0)
        elif field.message_type is None:
            fields[field.name] = value
        elif field.message_type.name == "Timestamp":
            fields[field.name] = value.ToDatetime(UTC)
        elif field.is_repeated:
            fields[field.name] = [_fields(each) for each in value]
        else:
            fields[field.name] = _fields(value)
    return fields


_AMOUNTS = ("amount", "finalAmount", "runningRevenue")


class _JsonSchema:
    serde = "JsonSchema"

    def require_packages(self) -> None:
        pass

    def write(self, schema: RegisteredSchema, text: bytes) -> bytes:
        if not text:
            raise ValueError("the value is empty")
        return text

    def read(self, schema: RegisteredSchema, data: bytes) -> dict[str, Any]:
        value = json.loads(data, parse_float=Decimal)
        assert isinstance(value, dict)
        return value

    def as_json(self, schema: RegisteredSchema, data: bytes) -> bytes:
        return data


CODECS: dict[str, Codec] = {
    "avro": _Avro(),
    "protobuf": _Protobuf(),
    "json_schema": _JsonSchema(),
}
"""Name of a format of the demo → its codec."""


def write_pipeline(source: Path, folder: Path, codec: Codec) -> None:
    """Write the pipeline's file with a format in place of JSON, and copy the files beside it."""
    folder.mkdir(parents=True)
    text = (source / "orders.py").read_text()
    for old, new in _EDITS:
        assert text.count(old) == 1, f"{old!r} is once in spark_jobs/orders.py"
        text = text.replace(old, new)
    (folder / "orders.py").write_text(text.replace("SERDE", codec.serde))
    for name in _OTHER_FILES:
        shutil.copy(source / name, folder / name)


@dataclass(frozen=True)
class RegisteredOrders:
    """The samples and results of the pipeline in a folder."""

    registry: Registry
    pipelines: Path
    codec: Codec

    def register(self) -> None:
        """Register the schemas of all topics."""
        job = plan(load_pipeline(self.pipelines, EXAMPLE.name)).job
        formats = {source.topic: of_source for source, of_source in job.registered_sources()}
        formats |= {sink.topic: of_sink for sink, of_sink in job.registered_sinks()}
        for topic, of_topic in formats.items():
            subject = of_topic.subject_in(topic)
            self.registry.register(subject, of_topic.schema, of_topic.kind)

    def example(self) -> Example:
        return replace(EXAMPLE, samples=self._samples, expected=self._expected, decode=self._plain)

    def _samples(self, count: int, seed: int, start_ms: int) -> Iterator[Sample]:
        """Yield the samples in the format.

        An order that the format cannot hold stays JSON, as a faulty producer would send it.
        """
        for sample in EXAMPLE.samples(count, seed, start_ms):
            schema = self.registry.version(f"{sample.topic}-value")
            value = sample.value or b""
            with suppress(ValueError):
                value = prefix(schema.id) + self.codec.write(schema, value)
            yield sample._replace(value=value)

    def _expected(self, records: Iterable[Sample]) -> Results:
        decoded: list[Sample] = []
        others = Counter[str]()
        for record in records:
            if record.value and record.value.startswith(_NAMED):
                ref, begin = named_schema(record.value)
                text = self.codec.as_json(self.registry.schema(ref), record.value[begin:])
                decoded.append(record._replace(value=text))
            else:
                others["no_schema" if record.value else "empty_value"] += 1
        results = EXAMPLE.expected(decoded)
        results.dead_letters.update(others)
        return results

    def _plain(self, data: bytes | str | None) -> Any:
        """Return the fields of a record in the format; None for a record in another format."""
        if not isinstance(data, bytes) or not data.startswith(_NAMED):
            return None
        ref, begin = named_schema(data)
        return self.codec.read(self.registry.schema(ref), data[begin:])


_NAMED = b"\0"
"""The first byte of every record that has a schema's id before the value."""


def _with_times(fields: dict[str, Any]) -> dict[str, Any]:
    time = fields.get("orderedDateTime")
    if time is None:
        return fields
    return {**fields, "orderedDateTime": datetime.fromisoformat(time).replace(tzinfo=UTC)}


def _with_zones(fields: dict[str, Any]) -> dict[str, Any]:
    time = fields.get("orderedDateTime")
    return fields if time is None else {**fields, "orderedDateTime": f"{time}Z"}


def _with_texts(fields: dict[str, Any]) -> dict[str, Any]:
    time = fields.get("orderedDateTime")
    if time is None:
        return fields
    return {**fields, "orderedDateTime": time.replace(tzinfo=None).isoformat()}
