"""The records that a test pipes into a pipeline, and the output that it reads."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa

from sluice.engine.publish.markers import PublishedState
from sluice.engine.read.source_identity import Positions
from sluice.errors import EngineError
from sluice.sinks.target import BatchId, Column, Published, Rows
from sluice.state.ledger.audits import SourceAudit
from sluice.state.ledger.history import Batch
from sluice.state.ledger.sources import SourcePartition
from sluice.values.contract_values import as_produced
from sluice.values.headers import Headers, HeaderValue
from sluice.values.keys import key_text
from sluice.values.record_places import Partition
from sluice.values.stored_values import plain_model

HeadersArgument = Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]]
"""Headers by name, or as pairs of name and value if a name occurs more than once."""


class PipedRecords:
    """Numbers the records of all topics, and writes each record as a JSON object of its columns.

    `zone` is the time zone of times that have none.
    """

    def __init__(self, zone: str = "UTC") -> None:
        self._zone = ZoneInfo(zone)
        self._offsets: Counter[tuple[str, int]] = Counter()

    def record(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        contract: Any = None,
        timestamp: int,
        headers: HeadersArgument | None = None,
        partition: int = 0,
    ) -> str:
        """Return the next record of a topic's partition.

        Values and keys of type str, bytes or None stay as they are. If the topic's values are JSON,
        `contract` is their type: it decides how a dict is written.
        """
        key_bytes = key if isinstance(key, bytes) else _bytes(key_text(key), None, self._zone)
        record = {
            "topic": topic,
            "partition": partition,
            "offset": self._offsets[topic, partition],
            "timestamp": timestamp,
            "key": _base64(key_bytes),
            "value": _base64(_bytes(value, contract, self._zone)),
            "sequence": self._offsets.total(),
            "headers": Headers(headers or ()).json() or "null",
        }
        self._offsets[topic, partition] += 1
        return json.dumps(record)


def _bytes(value: Any, contract: Any, zone: tzinfo) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json_bytes(value, contract, zone)


def json_bytes(value: Any, contract: Any, zone: tzinfo = UTC) -> bytes:
    """Return the JSON of a value of a contract."""
    # A dict, list or tuple may stand for a value of another type, such as a Struct. The contract
    # names this type.
    kind = contract if isinstance(value, dict | list | tuple) else type(value)
    if kind is not None:
        value = as_produced(value, kind, zone)
    return _encode(value)


_encode = msgspec.json.Encoder(decimal_format="number", enc_hook=plain_model).encode


def _base64(value: bytes | None) -> str | None:
    if value is None:
        return None
    return base64.b64encode(value).decode()


@dataclass
class OutputInMemory:
    """Stores output records by topic for the test."""

    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def send(
        self, batch: Batch, records: Iterable[tuple[str, pa.Table]], state: PublishedState
    ) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for topic, table in records:
            counts[topic] += table.num_rows
            self.records.setdefault(topic, []).extend(table.to_pylist())
        return dict(counts)


@dataclass
class TablesInMemory:
    """Stores the rows of tables as records, as if tables were topics, and checks their columns."""

    output: OutputInMemory
    columns: Mapping[str, Sequence[Column]]

    def begin(self, published: Published | None) -> None:
        pass

    def write(self, batch: BatchId, rows: Mapping[str, Rows]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for output, of_table in rows.items():
            counts[output] = of_table.count
            self.output.records.setdefault(output, []).extend(of_table.records.to_pylist())
        return counts


class UncontestedLease:
    """A lease, and a check of the topics' identity, that always succeed.

    No other program uses the state and the topics of a test.
    """

    @property
    def epoch(self) -> int:
        return 1

    def check(self) -> None:
        pass

    def check_batch(self, read: Sequence[SourceAudit]) -> Sequence[SourcePartition]:
        return ()

    def require_reached(self, positions: Positions, ends: Mapping[Partition, int]) -> None:
        pass

    def why_unwritable(self) -> EngineError | None:
        return None
