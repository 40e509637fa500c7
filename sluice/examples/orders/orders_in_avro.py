"""The orders example in Avro: the pipeline's file, samples and results, with a schema registry.

The records are written and read by `fastavro`, so Sluice's own Avro is compared with another.
"""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from sluice.errors import missing_extra
from sluice.examples.example import Example, Results, Sample, json_bytes
from sluice.examples.orders.orders_example import EXAMPLE
from sluice.plan import plan
from sluice.registry.registry import Registry
from sluice.topology import load_pipeline
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
    ("from sluice import Decimal2", "from sluice import Avro, Decimal2, Digits"),
    ("value=Order,", "value=Avro(Order),"),
    ("value=Store,", "value=Avro(Store),"),
    ('_orders")\n', '_orders", value=Avro(OrderAmount))\n'),
    ('_orders_revenue")\n', '_orders_revenue", value=Avro(StoreRevenue))\n'),
    ("\npipeline = Pipeline(", _CLASSES),
)  # fmt: skip
"""What differs in the file of the pipeline: text → its replacement."""


def write_pipeline(source: Path, folder: Path) -> None:
    """Write the pipeline's file with Avro in place of JSON, and copy the files beside it."""
    folder.mkdir(parents=True)
    text = (source / "orders.py").read_text()
    for old, new in _EDITS:
        assert text.count(old) == 1, f"{old!r} is once in spark_jobs/orders.py"
        text = text.replace(old, new)
    (folder / "orders.py").write_text(text)
    for name in _OTHER_FILES:
        shutil.copy(source / name, folder / name)


def require_fastavro() -> None:
    """Raise SettingsError if the packages of the extra `registry` are missing."""
    try:
        import fastavro  # noqa: F401  (only tried)
    except ImportError as error:
        raise missing_extra(error) from None


@dataclass(frozen=True)
class AvroOrders:
    """The samples and results of the pipeline in a folder."""

    registry: Registry
    pipelines: Path

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
        """Yield the samples in Avro. An order that has no Avro stays JSON, as a wrong producer."""
        for sample in EXAMPLE.samples(count, seed, start_ms):
            schema = self.registry.version(f"{sample.topic}-value")
            yield sample._replace(value=_written(schema, sample.value or b""))

    def _expected(self, records: Iterable[Sample]) -> Results:
        decoded: list[Sample] = []
        others = Counter[str]()
        for record in records:
            value = self._plain(record.value)
            if isinstance(value, dict):
                decoded.append(record._replace(value=json_bytes(_with_texts(value))))
            else:
                others["no_schema" if record.value else "empty_value"] += 1
        results = EXAMPLE.expected(decoded)
        results.dead_letters.update(others)
        return results

    def _plain(self, data: bytes | str | None) -> Any:
        """Return the fields of a record in Avro, and None for another record."""
        import fastavro

        if not isinstance(data, bytes) or not data.startswith(b"\0"):
            return None
        ref, begin = named_schema(data)
        parsed = _parsed(self.registry.schema(ref).text)
        return fastavro.schemaless_reader(io.BytesIO(data[begin:]), parsed, None)


@cache
def _parsed(text: str) -> Any:
    import fastavro

    return fastavro.parse_schema(json.loads(text))


def _written(schema: RegisteredSchema, text: bytes) -> bytes:
    import fastavro

    buffer = io.BytesIO()
    try:
        value = json.loads(text, parse_float=Decimal, object_hook=_with_times)
        fastavro.schemaless_writer(buffer, _parsed(schema.text), value)
    except (ValueError, TypeError, ArithmeticError, AttributeError):
        return text
    return prefix(schema.id) + buffer.getvalue()


def _with_times(fields: dict[str, Any]) -> dict[str, Any]:
    time = fields.get("orderedDateTime")
    if time is None:
        return fields
    return {**fields, "orderedDateTime": datetime.fromisoformat(time).replace(tzinfo=UTC)}


def _with_texts(fields: dict[str, Any]) -> dict[str, Any]:
    time = fields.get("orderedDateTime")
    if time is None:
        return fields
    return {**fields, "orderedDateTime": time.replace(tzinfo=None).isoformat()}
