"""Kafka topics as decoded rows: what a task does right after the source, for streams and for global tables."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from sluice.engine.arrow import arrow_type
from sluice.engine.decode import Letter, ValueDecoder
from sluice.engine.handoff import Facts, Handoff, open_path
from sluice.errors import EngineError
from sluice.plan import Job, column_name
from sluice.state.model import NO_WINDOW
from sluice.topology.expressions import METADATA

DEAD_LETTER = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


RECORD = ("topic", "partition", "offset", "timestamp", "key", "value", "to_json(headers) AS headers")
"""What a task takes of a record. As text, headers cost next to nothing where there are none: Arrow's lists do not."""


def current_batch() -> int:
    """The batch that this task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.getLocalProperty("streaming.sql.batchId") or 0)


def batch_log(checkpoint: str, batch: int) -> list[str]:
    """Spark's log of a batch, written before it runs: its version, its facts, then each source's end positions.

    Raises EngineError if it is not there, or damaged.
    """
    filesystem, path = open_path(checkpoint)
    try:
        with filesystem.open_input_stream(f"{path}/offsets/{batch}") as file:
            version, *lines = str(file.read().decode()).splitlines()
        for line in lines:
            if line != "-":
                json.loads(line)
    except (OSError, ValueError) as error:
        raise EngineError(
            f"The checkpoint is damaged: {path}/offsets/{batch} cannot be read: {error}.",
            next_step="Restore it, or build the state anew from the topics: sluice rebuild PIPELINE.",
        ) from error
    return [version, *lines]


def last_batch(checkpoint: str, log: str) -> int:
    """The last batch in one of the checkpoint's logs: `offsets` of those begun, `commits` of those done. -1 if none."""
    filesystem, path = open_path(f"{checkpoint}/{log}")
    found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return max((int(info.base_name) for info in found if info.base_name.isdigit()), default=-1)


def forget_stray_checksums(checkpoint: str) -> None:
    """Delete Hadoop's checksums of log files that are gone: Spark would refuse to write these files again."""
    for log in ("offsets", "commits"):
        filesystem, path = open_path(f"{checkpoint}/{log}")
        found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        there = {info.base_name for info in found}
        for info in found:
            if info.extension == "crc" and info.base_name.removeprefix(".").removesuffix(".crc") not in there:
                filesystem.delete_file(info.path)


def batch_clock(checkpoint: str, batch: int) -> int:
    """When the batch was first begun, epoch ms: the same however often it is tried."""
    return int(json.loads(batch_log(checkpoint, batch)[1])["batchTimestampMs"])


@dataclass(frozen=True)
class BatchClock:
    """When the batches of a checkpoint were begun. A test moves the clock on by the ms in the file `moved`."""

    checkpoint: str
    moved: str = ""

    def begun(self, batch: int) -> int:
        """When the batch was first begun, epoch ms."""
        ahead = int(Path(self.moved).read_text()) if self.moved else 0
        return batch_clock(self.checkpoint, batch) + ahead


def batch_positions(checkpoint: str, batch: int) -> dict[str, dict[str, int]]:
    """By topic and partition the offset after the batch's last record, over all sources."""
    positions: dict[str, dict[str, int]] = {}
    for line in batch_log(checkpoint, batch)[2:]:
        found = None if line == "-" else json.loads(line)
        if isinstance(found, dict):  # what a test pipes in has a plain number
            positions |= found
    return positions


@dataclass
class _Part:
    """One partition's share of a batch, while it is read."""

    topic: str
    partition: int
    counts: Counter[str] = field(default_factory=Counter)
    letters: list[pa.RecordBatch] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"read-{self.topic}-{self.partition:05}"


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
    """Runs of records of one partition: from Kafka a task gets one partition's, from a test all in their order."""
    topics, partitions = batch.column("topic"), batch.column("partition")
    if pc.count_distinct(topics).as_py() == 1 and pc.count_distinct(partitions).as_py() == 1:
        yield (topics[0].as_py(), partitions[0].as_py()), batch
        return
    places = list(zip(topics.to_pylist(), partitions.to_pylist(), strict=True))
    begin = 0
    for row in range(1, len(places) + 1):
        if row == len(places) or places[row] != places[begin]:
            yield places[begin], batch.slice(begin, row - begin)
            begin = row


@dataclass(frozen=True)
class Reader:
    """What streams and tables have in common: records in, letters set aside, facts handed over at the end."""

    handoff: Handoff
    batches: BatchClock
    dead_letters: str
    decoders: dict[str, ValueDecoder]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the records of one task."""
        parts: dict[tuple[str, int], _Part] = {}
        number = current_batch()
        clock = self.batches.begun(number)
        for batch in batches:
            if batch.num_rows:
                yield from self._read(batch, parts, clock)
        for part in parts.values():
            self._hand_over(number, part)

    def _read(self, batch: pa.RecordBatch, parts: dict[tuple[str, int], _Part], clock: int) -> Iterator[pa.RecordBatch]:
        for place, mine in _by_partition(batch):
            part = parts.setdefault(place, _Part(*place))
            part.counts["read"] += mine.num_rows
            yield self._decode(mine, part, clock)

    def _hand_over(self, number: int, part: _Part) -> None:
        if part.letters:
            self.handoff.write_records(number, self.dead_letters, part.name, pa.Table.from_batches(part.letters))
        self.handoff.write_facts(number, part.name, Facts(dict(part.counts)))

    def _decode(self, batch: pa.RecordBatch, part: _Part, clock: int) -> pa.RecordBatch:
        raise NotImplementedError

    def _set_aside(self, batch: pa.RecordBatch, part: _Part, letters: list[Letter]) -> None:
        if letters:
            letters.sort(key=lambda letter: letter.row)
            part.counts.update(f"dead_letter/{letter.reason}" for letter in letters)
            part.letters.append(dead_letters(batch, letters))


def dead_letters(batch: pa.RecordBatch, letters: list[Letter]) -> pa.RecordBatch:
    """The original bytes and headers, with headers that say where they stood and why they are here."""
    found = batch.take(pa.array([letter.row for letter in letters]))
    headers = [
        [
            *_headers(header),
            _header("sluice.reason", letter.reason),
            _header("sluice.detail", letter.detail),
            *(_header(f"sluice.{name}", str(record[name])) for name in ("topic", "partition", "offset")),
            _header("sluice.timestamp", record["timestamp"].isoformat()),
        ]
        for letter, header, record in zip(
            letters,
            found.column("headers").to_pylist(),
            found.select(["topic", "partition", "offset", "timestamp"]).to_pylist(),
            strict=True,
        )
    ]
    columns = [found.column("key"), found.column("value"), pa.array(headers, DEAD_LETTER.field("headers").type)]
    return pa.RecordBatch.from_arrays(
        [c.cast(f.type) for c, f in zip(columns, DEAD_LETTER, strict=True)], schema=DEAD_LETTER
    )


def _headers(text: str | None) -> list[dict[str, str | bytes | None]]:
    """The headers of a record out of the JSON in which they came."""
    found = json.loads(text) if text else []
    return [{"key": one["key"], "value": b64decode(one["value"]) if "value" in one else None} for one in found]


def _header(key: str, value: str) -> dict[str, str | bytes]:
    return {"key": key, "value": value.encode()}


@dataclass(frozen=True)
class StreamReader(Reader):
    """Rows of typed columns: `_source`, `_partition`, `_time`, the metadata that is used, and every source's fields."""

    metadata: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Further columns of `_EXTRA` that the job needs."""

    @classmethod
    def of(cls, job: Job, handoff: Handoff, batches: BatchClock, *, interleaved: bool = False) -> StreamReader:
        """The reader of a job's streams; `interleaved`: the records say in which order they came."""
        decoders = {source.topic: ValueDecoder.of(source, job.fields.get(source.number, ())) for source in job.streams}
        wanted = {
            "_null": any(decoder.keeps_nulls for decoder in decoders.values()),
            "_sequence": interleaved,
            **dict.fromkeys(("_raw_key", "_raw_value", "_raw_headers"), bool(job.failures)),
        }
        extra = tuple(name for name, is_wanted in wanted.items() if is_wanted)
        return cls(handoff, batches, job.pipeline.dead_letters, decoders, job.metadata, extra)

    @property
    def columns(self) -> dict[str, str]:
        """Names and Spark SQL types of the rows' columns."""
        columns = {"_source": "INT", "_partition": "INT", "_time": "BIGINT"}
        columns |= {name: METADATA[name] for name in self.metadata if name != "_partition"}
        columns |= {name: _EXTRA[name] for name in self.extra}
        for decoder in self.decoders.values():
            columns |= {column_name(f"s{decoder.number}", name): decoder.types[name] for name in decoder.fields}
        return columns

    def _decode(self, batch: pa.RecordBatch, part: _Part, clock: int) -> pa.RecordBatch:
        decoder = self.decoders[part.topic]
        rows, values, letters = decoder.decode(batch.column("value").to_pylist())
        kept = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows, pa.int64()))
        latest = clock + decoder.max_ahead_ms
        try:
            made = self._columns(decoder, kept, values, part)
            wrong = _untimely(made["_time"], latest)
        except (pa.ArrowException, OverflowError, ValueError):
            wrong = [self._misfit(decoder, kept.slice(i, 1), [value], part, latest) for i, value in enumerate(values)]
            made = {}
        if any(wrong):
            wrong = self._excused(decoder, wrong, part)
            letters += [Letter(row, *why) for row, why in zip(rows, wrong, strict=True) if why and why[0] != SKIPPED]
            fine = [i for i, why in enumerate(wrong) if why is None]
            kept = kept.take(pa.array(fine, pa.int64()))
            made = self._columns(decoder, kept, [values[i] for i in fine], part, clock)
        self._set_aside(batch, part, letters)
        schema = pa.schema([(name, arrow_type(kind)) for name, kind in self.columns.items()])
        return pa.RecordBatch.from_arrays(
            [made.get(f.name, pa.nulls(kept.num_rows, f.type)) for f in schema], schema=schema
        )

    def _columns(
        self,
        decoder: ValueDecoder,
        kept: pa.RecordBatch,
        values: Sequence[Any],
        part: _Part,
        instead: int | None = None,
    ) -> dict[str, pa.Array]:
        made = {column_name(f"s{decoder.number}", name): decoder.column(values, name) for name in decoder.fields}
        made["_source"] = pa.repeat(pa.scalar(decoder.number, pa.int32()), len(values))
        made["_partition"] = pa.repeat(pa.scalar(part.partition, pa.int32()), len(values))
        made["_time"] = decoder.times(values, kept.column("timestamp"))
        if instead is not None and decoder.on_time == "clock":
            made["_time"] = _timely(made["_time"], instead)
        for name in self.metadata:
            made |= {} if name == "_partition" else {name: self._metadata(name, kept, decoder)}
        for name in self.extra:
            made[name] = self._extra(name, kept)
        return made

    @staticmethod
    def _metadata(name: str, kept: pa.RecordBatch, decoder: ValueDecoder) -> pa.Array:
        kind = arrow_type(METADATA[name])
        if name == "_headers":
            return pa.array([_header_texts(text) for text in kept.column("headers").to_pylist()], kind)
        if name == "_key" and decoder.author_key is not None:
            keys = list(decoder.keys(kept.column("key").to_pylist()))
            if wrong := next((key for key in keys if isinstance(key, Exception)), None):
                raise ValueError(str(wrong))
            return pa.array(keys, kind)
        return kept.column(name[1:]).cast(kind)

    @staticmethod
    def _extra(name: str, kept: pa.RecordBatch) -> pa.Array:
        match name:
            case "_null":
                return kept.column("value").is_null()
            case "_sequence":
                return kept.column("sequence")
            case _:
                return kept.column(name.removeprefix("_raw_"))

    @staticmethod
    def _excused(decoder: ValueDecoder, wrong: Wrong, part: _Part) -> Wrong:
        """What the source's author wants done about records without a valid time."""
        found = [why for why in wrong if why and why[0] == "event_time"]
        if not found or decoder.on_time == "dead_letter":
            return wrong
        if decoder.on_time == "fail":
            raise EngineError(
                f"{part.topic}, partition {part.partition}: {found[0][1]}.",
                next_step="The source says invalid_time='fail': correct the topic, or choose another policy.",
            )
        if decoder.on_time == "clock":
            return [None if why and why[0] == "event_time" else why for why in wrong]
        part.counts["dropped/event_time"] += len(found)
        return [(SKIPPED, "") if why and why[0] == "event_time" else why for why in wrong]

    def _misfit(
        self, decoder: ValueDecoder, record: pa.RecordBatch, value: Sequence[Any], part: _Part, latest: int
    ) -> tuple[str, str] | None:
        """Why one record of a batch cannot be taken, if it cannot."""
        (key,) = decoder.keys(record.column("key").to_pylist())
        if "_key" in self.metadata and isinstance(key, Exception):
            return "key_not_utf8" if isinstance(key, UnicodeDecodeError) else "key", str(key)
        try:
            made = self._columns(decoder, record, value, part)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            return "out_of_range", str(error).splitlines()[0]
        return next(iter(_untimely(made["_time"], latest)), None)


def _timely(times: pa.Array, instead: int) -> pa.Array:
    """The times, with another one for each that is none."""
    valid = pc.fill_null(pc.greater_equal(times, 0), False)
    return pc.if_else(valid, times, pa.scalar(instead, pa.int64()))


def _header_texts(text: str | None) -> list[tuple[str, str | None]] | None:
    """The headers as texts, the last of each name; null for one that is no UTF-8."""
    if not text:
        return None
    values = {header["key"]: header["value"] for header in _headers(text)}
    return [(str(key), _utf8(value)) for key, value in values.items()]


def _utf8(value: str | bytes | None) -> str | None:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return None


Wrong = list[tuple[str, str] | None]
SKIPPED = "skipped"
_EXTRA = {
    "_null": "BOOLEAN",
    "_sequence": "BIGINT",
    "_raw_key": "BINARY",
    "_raw_value": "BINARY",
    "_raw_headers": "STRING",
}


def _untimely(times: pa.Array, latest: int) -> Wrong:
    """For each event time why it cannot be taken, if it cannot; empty if all can."""
    if not times.null_count and (not len(times) or (pc.min(times).as_py() >= 0 and pc.max(times).as_py() <= latest)):
        return []
    return [_why_untimely(time, latest) for time in times.to_pylist()]


def _why_untimely(time: int | None, latest: int) -> tuple[str, str] | None:
    if time is None:
        return "event_time", "the event time is null"
    if time < 0:
        return "event_time", f"the event time, {time} ms, is before 1970"
    if time > latest:
        return (
            "future",
            f"the event time, {time} ms, is after {latest} ms, the latest that was allowed when it was read",
        )
    return None


@dataclass(frozen=True)
class TableReader(Reader):
    """Rows of cells: a value is the record's text, a tombstone null; `position` orders the changes of a key."""

    families: dict[str, int] = field(default_factory=dict)
    keys: dict[str, str | None] = field(default_factory=dict)

    columns = "cell INT, key STRING, window_start BIGINT, window_end BIGINT, value STRING, position BIGINT"

    @classmethod
    def of(cls, job: Job, handoff: Handoff, batches: BatchClock) -> TableReader:
        """The reader of a job's global tables."""
        decoders = {table.source.topic: ValueDecoder.of(table.source, ()) for table in job.tables}
        families = {table.source.topic: table.family for table in job.tables}
        keys = {table.source.topic: table.source.key for table in job.tables}
        return cls(handoff, batches, job.pipeline.dead_letters, decoders, families, keys)

    def _decode(self, batch: pa.RecordBatch, part: _Part, clock: int) -> pa.RecordBatch:
        raw = batch.column("value").to_pylist()
        letters: list[Letter] = []
        found: list[tuple[str, str | None, int]] = []
        decoder, field_key = self.decoders[part.topic], self.keys[part.topic]
        rows, values, refused = decoder.decode(raw)
        letters += refused
        keys = list(decoder.keys(batch.column("key").to_pylist()))
        offsets = batch.column("offset").to_pylist()
        for row, value in zip(rows, values, strict=True):
            key = keys[row] if field_key is None or value is None else decoder.text(value, field_key)
            if isinstance(key, str):
                found.append((key, None if value is None else f"[{decoder.json(value, raw[row])}]", offsets[row]))
            else:
                reason = ("null_key", "a table's record needs a key") if key is None else ("key_not_utf8", str(key))
                letters.append(Letter(row, *reason))
        self._set_aside(batch, part, letters)
        part.counts["applied"] += len(found)
        return self._cells(self.families[part.topic], found)

    @staticmethod
    def _cells(family: int, found: list[tuple[str, str | None, int]]) -> pa.RecordBatch:
        keys, values, positions = zip(*found, strict=True) if found else ((), (), ())
        none = pa.repeat(pa.scalar(NO_WINDOW, pa.int64()), len(found))
        return pa.RecordBatch.from_arrays(
            [pa.repeat(pa.scalar(family, pa.int32()), len(found)), pa.array(keys, pa.string()), none, none,
             pa.array(values, pa.string()), pa.array(positions, pa.int64())],
            names=["cell", "key", "window_start", "window_end", "value", "position"],
        )  # fmt: skip
