"""Streams' topics as decoded rows: what a task does right after the source; and what it has in common with tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.arrow import arrow_type
from sluice.engine.batch.checkpoint import BatchClock, current_batch
from sluice.engine.batch.dead_letters import dead_letters, headers_of
from sluice.engine.batch.side_outputs import Facts, SideOutputs
from sluice.engine.read.decode import OF_VALUES, DeadLetter, ValueDecoder
from sluice.errors import EngineError
from sluice.plan import Job
from sluice.values.records import METADATA, MOST_KEY_BYTES

RECORD = ("topic", "partition", "offset", "timestamp", "key", "value", "to_json(headers) AS headers")
"""What a task takes of a record. As text, headers cost next to nothing where there are none: Arrow's lists do not."""

Wrong = list[tuple[str, str] | None]
"""For each record why it cannot be taken, reason and detail, or None."""
SKIPPED = "skipped"
_EXTRA = {
    "_null": "BOOLEAN",
    "_sequence": "BIGINT",
    "_raw_key": "BINARY",
    "_raw_value": "BINARY",
    "_raw_headers": "STRING",
}


@dataclass
class Share:
    """One partition's share of a batch, while it is read."""

    topic: str
    partition: int
    counts: Counter[str] = field(default_factory=Counter)
    letters: list[pa.RecordBatch] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of what is handed over of it."""
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

    side_outputs: SideOutputs
    batches: BatchClock
    dead_letters: str
    decoders: dict[str, ValueDecoder]
    read_elsewhere: frozenset[str]
    """Topics of which another job sets aside the values that are not what they should be."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the records of one task."""
        shares: dict[tuple[str, int], Share] = {}
        number = current_batch()
        clock = self.batches.begun(number)
        for batch in batches:
            if batch.num_rows:
                yield from self._read(batch, shares, clock)
        for share in shares.values():
            self._hand_over(number, share)

    def _read(
        self, batch: pa.RecordBatch, shares: dict[tuple[str, int], Share], clock: int
    ) -> Iterator[pa.RecordBatch]:
        for place, mine in _by_partition(batch):
            share = shares.setdefault(place, Share(*place))
            share.counts["read"] += mine.num_rows
            yield self._decode(mine, share, clock)

    def _hand_over(self, number: int, share: Share) -> None:
        if share.letters:
            self.side_outputs.write_records(number, self.dead_letters, share.name, pa.Table.from_batches(share.letters))
        self.side_outputs.write_facts(number, share.name, Facts(dict(share.counts)))

    def _decode(self, batch: pa.RecordBatch, share: Share, clock: int) -> pa.RecordBatch:
        raise NotImplementedError

    def _set_aside(self, batch: pa.RecordBatch, share: Share, letters: list[DeadLetter]) -> None:
        if not letters:
            return
        letters.sort(key=lambda letter: letter.row)
        match self.decoders[share.topic].source.on_error:
            case "fail":
                raise _unreadable(batch, share, letters[0])
            case "skip":
                share.counts.update(f"dropped/{letter.reason}" for letter in letters)
            case "dead_letter":
                share.counts.update(f"dead_letter/{letter.reason}" for letter in letters)
                mine = [one for one in letters if share.topic not in self.read_elsewhere or one.reason not in OF_VALUES]
                if mine:
                    share.letters.append(dead_letters(batch, mine))


@dataclass(frozen=True)
class StreamReader(Reader):
    """Rows of typed columns: `_source`, `_partition`, `_time`, the metadata that is used, and every source's fields."""

    metadata: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Further columns of `_EXTRA` that the job needs."""

    @classmethod
    def of(cls, job: Job, side_outputs: SideOutputs, batches: BatchClock, *, interleaved: bool = False) -> StreamReader:
        """The reader of a job's streams; `interleaved`: the records say in which order they came."""
        decoders = {source.topic: ValueDecoder(source) for source in job.streams}
        wanted = {
            "_null": any(decoder.keeps_nulls for decoder in decoders.values()),
            "_sequence": interleaved,
            **dict.fromkeys(("_raw_key", "_raw_value", "_raw_headers"), bool(job.first_failures)),
        }
        extra = tuple(name for name, is_wanted in wanted.items() if is_wanted)
        return cls(side_outputs, batches, job.pipeline.dead_letters, decoders, job.read_elsewhere, job.metadata, extra)

    @property
    def columns(self) -> dict[str, str]:
        """Names and Spark SQL types of the rows' columns."""
        columns = {"_source": "INT", "_partition": "INT", "_time": "BIGINT"}
        columns |= {name: METADATA[name] for name in self.metadata if name != "_partition"}
        columns |= {name: _EXTRA[name] for name in self.extra}
        for decoder in self.decoders.values():
            columns |= {field.column: decoder.source.types[field.name] for field in decoder.source.fields}
        return columns

    def _decode(self, batch: pa.RecordBatch, share: Share, clock: int) -> pa.RecordBatch:
        decoder = self.decoders[share.topic]
        rows, values, letters = decoder.decode(batch.column("value").to_pylist())
        kept = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows, pa.int64()))
        latest = clock + decoder.source.max_future_skew_ms
        try:
            made = self._columns(decoder, kept, values, share)
            wrong = _untimely(made["_time"], latest)
        except (pa.ArrowException, OverflowError, ValueError):
            wrong = [self._misfit(decoder, kept.slice(i, 1), [value], share, latest) for i, value in enumerate(values)]
            made = {}
        if any(wrong):
            wrong = self._excused(decoder, wrong, share)
            letters += [
                DeadLetter(row, *why) for row, why in zip(rows, wrong, strict=True) if why and why[0] != SKIPPED
            ]
            fine = [i for i, why in enumerate(wrong) if why is None]
            kept = kept.take(pa.array(fine, pa.int64()))
            made = self._columns(decoder, kept, [values[i] for i in fine], share, clock)
        self._set_aside(batch, share, letters)
        schema = pa.schema([(name, arrow_type(kind)) for name, kind in self.columns.items()])
        return pa.RecordBatch.from_arrays(
            [made.get(f.name, pa.nulls(kept.num_rows, f.type)) for f in schema], schema=schema
        )

    def _columns(
        self,
        decoder: ValueDecoder,
        kept: pa.RecordBatch,
        values: Sequence[Any],
        share: Share,
        instead: int | None = None,
    ) -> dict[str, pa.Array]:
        source = decoder.source
        made = {field.column: decoder.column(values, field.name) for field in source.fields}
        made["_source"] = pa.repeat(pa.scalar(source.number, pa.int32()), len(values))
        made["_partition"] = pa.repeat(pa.scalar(share.partition, pa.int32()), len(values))
        for read in source.fields:
            if read.is_key:
                _require_short(read.name, made[read.column])
        made["_time"] = decoder.times(values, kept.column("timestamp"))
        if instead is not None and decoder.source.on_time == "clock":
            made["_time"] = _timely(made["_time"], instead)
        for name in self.metadata:
            made |= {} if name == "_partition" else {name: self._metadata(name, kept, decoder)}
        if "_key" in made:
            _require_short("the key", made["_key"])
        for name in self.extra:
            made[name] = self._extra(name, kept)
        return made

    @staticmethod
    def _metadata(name: str, kept: pa.RecordBatch, decoder: ValueDecoder) -> pa.Array:
        kind = arrow_type(METADATA[name])
        if name == "_headers":
            return pa.array([_header_texts(text) for text in kept.column("headers").to_pylist()], kind)
        if name == "_key" and decoder.source.key_decode is not None:
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
    def _excused(decoder: ValueDecoder, wrong: Wrong, share: Share) -> Wrong:
        """What the source's author wants done about records without a valid time."""
        found = [why for why in wrong if why and why[0] == "event_time"]
        if not found or decoder.source.on_time == "dead_letter":
            return wrong
        if decoder.source.on_time == "fail":
            raise EngineError(
                f"{share.topic}, partition {share.partition}: {found[0][1]}.",
                next_step="The source says invalid_time='fail': correct the topic, or choose another policy.",
            )
        if decoder.source.on_time == "clock":
            return [None if why and why[0] == "event_time" else why for why in wrong]
        share.counts["dropped/event_time"] += len(found)
        return [(SKIPPED, "") if why and why[0] == "event_time" else why for why in wrong]

    def _misfit(
        self, decoder: ValueDecoder, record: pa.RecordBatch, value: Sequence[Any], share: Share, latest: int
    ) -> tuple[str, str] | None:
        """Why one record of a batch cannot be taken, if it cannot."""
        (key,) = decoder.keys(record.column("key").to_pylist())
        if "_key" in self.metadata and isinstance(key, Exception):
            return "key_not_utf8" if isinstance(key, UnicodeDecodeError) else "key", str(key)
        try:
            made = self._columns(decoder, record, value, share)
        except KeyTooLongError as error:
            return "key_too_long", str(error)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            return "out_of_range", str(error).splitlines()[0]
        return next(iter(_untimely(made["_time"], latest)), None)


class KeyTooLongError(ValueError):
    """A key is longer than a database's index takes."""


def _require_short(name: str, keys: pa.Array) -> None:
    if pa.types.is_string(keys.type) and len(keys) and (pc.max(pc.binary_length(keys)).as_py() or 0) > MOST_KEY_BYTES:
        longest = pc.max(pc.binary_length(keys)).as_py()
        raise KeyTooLongError(f"{name} has {longest} bytes; a key has at most {MOST_KEY_BYTES}")


def _unreadable(batch: pa.RecordBatch, share: Share, letter: DeadLetter) -> EngineError:
    offset = batch.column("offset")[letter.row].as_py()
    return EngineError(
        f"{share.topic}, partition {share.partition}, offset {offset}: {letter.reason}: {letter.detail}.",
        next_step='The source says on_error="fail": correct the topic, or let it say "dead_letter" or "skip".',
    )


def _timely(times: pa.Array, instead: int) -> pa.Array:
    """The times, with another one for each that is none."""
    valid = pc.fill_null(pc.greater_equal(times, 0), False)
    return pc.if_else(valid, times, pa.scalar(instead, pa.int64()))


def _header_texts(text: str | None) -> list[tuple[str, str | None]] | None:
    """The headers as texts, the last of each name; null for one that is no UTF-8."""
    if not text:
        return None
    values = {header["key"]: header["value"] for header in headers_of(text)}
    return [(str(key), _utf8(value)) for key, value in values.items()]


def _utf8(value: str | bytes | None) -> str | None:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return None


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
