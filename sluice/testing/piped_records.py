"""The records that a test pipes into a pipeline, and the output that it reads."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
        """The next record of a topic's partition. Values and keys of type str, bytes or None stay as they are.

        `contract` is the type of the topic's values, if they are JSON; it says how a dict is
        written.
        """
        record = {
            "topic": topic, "partition": partition, "offset": self._offsets[topic, partition], "timestamp": timestamp,
            "key": _base64(_bytes(_text(key), None, self._zone)), "value": _base64(_bytes(value, contract, self._zone)),
            "sequence": self._offsets.total(),
            "headers": Headers(headers or ()).json() or "null",
        }  # fmt: skip
        self._offsets[topic, partition] += 1
        return json.dumps(record)


def _text(key: Any) -> str | bytes | None:
    return key if isinstance(key, bytes) else key_text(key)


def _bytes(value: Any, contract: Any, zone: ZoneInfo) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    # A dict, list or tuple may stand for a value of another type, such as a Struct. The contract
    # names this type.
    kind = contract if isinstance(value, dict | list | tuple) else type(value)
    return _encode(value if kind is None else as_produced(value, kind, zone))


_encode = msgspec.json.Encoder(decimal_format="number", enc_hook=plain_model).encode


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


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
    """Stores the rows of tables as records, as if tables were topics, and checks them against the declared columns."""

    output: OutputInMemory
    columns: Mapping[str, Sequence[Column]]

    def begin(self, published: Published | None) -> None:
        pass

    def write(self, batch: BatchId, rows: Mapping[str, Rows]) -> dict[str, int]:
        for output, of_table in rows.items():
            self.output.records.setdefault(output, []).extend(of_table.records.to_pylist())
        return {output: of_table.count for output, of_table in rows.items()}


class UncontestedLease:
    """A lease, and a check of the topics' identity, that always succeed.

    Nothing else uses the state and the topics of a test.
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
