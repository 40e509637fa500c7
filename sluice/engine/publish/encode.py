"""Encodes output records with the author's encoders, and rejects records that cannot be written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import repeat
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.dead_letters import RejectedOutput
from sluice.engine.batch.job_topics import TopicLimits
from sluice.engine.batch.record_headers import HEADERS, Texts, with_more
from sluice.engine.batch.record_sizes import record_sizes
from sluice.engine.batch.rejections import describe_error, run_ending_error
from sluice.engine.publish.encode_registered import RegisteredEncoder
from sluice.engine.read.json_lines import one_array
from sluice.errors import RecordFailed
from sluice.operators.base import rejects_record
from sluice.plan import Sink
from sluice.sql.arrow_values import bytes_of
from sluice.support.arrays import Mask
from sluice.values.function_wrappers import WithHeaders, WithoutKey
from sluice.values.headers import Headers
from sluice.values.json_text import JSON_TEXT, encode_bytes, encode_text, plain_json
from sluice.values.registered_schemas import KEY_HEADER, VALUE_HEADER
from sluice.values.registry_formats import RegistryFormat
from sluice.values.sink_tables import WINDOW
from sluice.values.windowed_keys import windowed
from sluice.values.windows import Bounds

UNWRITTEN = "unwritten/"
"""Prefix of the counts, per topic, of output records that could not be written."""
_JSON_TEXT = re.compile(re.escape(JSON_TEXT.encode()))
_MOST_EXACT_DIGITS = 15
"""A float holds every number of up to this many digits exactly."""


def _number(text: str) -> float | Decimal:
    number = float(text)
    if len(text) <= _MOST_EXACT_DIGITS or Decimal(repr(number)) == Decimal(text):
        return number
    return Decimal(text)


_decode = msgspec.json.Decoder(float_hook=_number).decode
"""Decodes JSON for an author's encoder. A number whose digits a float cannot hold becomes a
Decimal."""

Encoder = Callable[[Any], bytes]
R = TypeVar("R")


def encode_records(
    sink: Sink,
    table: pa.Table,
    rejected: RejectedOutput,
    encoder_of: Callable[[RegistryFormat, str], RegisteredEncoder] | None = None,
) -> pa.Table:
    """Encode records. The result has `key`, `value`, perhaps `headers`, `timestamp`, `partition`.

    JSON is written unchanged, unless the author passed an encoder, which receives the decoded
    value. Records that cannot be encoded are added to `rejected`; if the sink has
    `on_error="fail"`, they raise EngineError instead. `encoder_of` returns the encoder for a topic
    and for a format whose schemas are in a registry. Raises RegistryAway.
    """
    table = _with_plain_values(latest_changes(sink, table))
    columns = {"key": table.column("key"), "value": table.column("value")}
    if "headers" in table.column_names:
        columns["headers"] = _without_schemas(sink, table.column("headers"))
    errors: dict[int, str] = {}
    if sink.encode is not None:
        encode: Encoder = sink.encode.value
        if isinstance(encode, RegistryFormat):
            assert encoder_of is not None, "the run gives the encoders of its registry"
            registered = encode = encoder_of(encode, sink.topic)
            if registered.header is not None:
                headers = columns.get("headers")
                columns["headers"] = _with_header(headers, len(table), registered.header)
        columns["value"] = _encode_values(encode, columns["value"], errors, sink)
    if sink.encode_key is not None and isinstance(sink.encode_key.value, RegistryFormat):
        assert encoder_of is not None, "the run gives the encoders of its registry"
        registered = encoder_of(sink.encode_key.value, sink.topic)
        columns["key"] = _encode_column(
            registered.encode_key, table.column("key").to_pylist(), errors, sink
        )
        if registered.header is not None:
            columns["headers"] = _with_header(
                columns.get("headers"), len(table), registered.header, KEY_HEADER
            )
    elif sink.encode_key is not None:
        columns["key"] = _encode_keys(sink.encode_key.value, table, errors, sink)
    # Kafka Streams writes the window into the key. Sluice leaves the key unchanged
    # and writes the bounds into headers.
    if sink.is_windowed:
        columns["headers"] = with_more(columns.get("headers"), _window_headers(table))
    if sink.partition is not None:
        headers = columns.get("headers")
        columns["partition"] = _partitions(sink.partition.value, table, headers, errors, sink)
    for name in ("timestamp", "time"):
        if name in table.column_names:
            columns["timestamp"] = table.column(name)
    records = pa.table(columns)
    if errors:
        return _reject_errors(sink, table, records, errors, rejected)
    return records


def _encode_values(
    encode: Encoder, texts: pa.ChunkedArray, errors: dict[int, str], sink: Sink
) -> pa.Array:
    """Encode each value, which is given as JSON."""
    # Sluice's own encoders take JSON and need no decoded value.
    takes_json = encode is encode_bytes or encode is encode_text
    if isinstance(encode, RegisteredEncoder):
        takes_json = encode.takes_json

    def encode_decoded(text: str) -> bytes:
        return encode(_decode(text))

    encode_json = encode if takes_json else encode_decoded
    if isinstance(encode, RegisteredEncoder):
        return _encode_texts(encode, encode_json, texts, errors, sink)
    return _encode_column(encode_json, texts.to_pylist(), errors, sink)


def _with_plain_values(table: pa.Table) -> pa.Table:
    """Turn the JSON of values of type Any, which Sluice stores as strings, back into plain JSON."""
    values = table.column("value")
    if pa.types.is_null(values.type) or not any(map(_may_contain_json_text, values.chunks)):
        return table
    plain = [None if value is None else plain_json(value) for value in values.to_pylist()]
    return table.set_column(
        table.schema.get_field_index("value"), "value", pa.array(plain, pa.string())
    )


def _may_contain_json_text(values: pa.StringArray) -> bool:
    """Return whether the values contain `JSON_TEXT`.

    The result may also be true if `JSON_TEXT` begins in one value and ends in the next.

    This searches the bytes of all values at once, because searching each value takes several times
    as long.
    """
    return _JSON_TEXT.search(bytes_of(values).data) is not None


def latest_changes(sink: Sink, changes: pa.Table) -> pa.Table:
    """Return the last change of each key and window; all changes if the sink writes every change.

    Keeps all rows without a key, because no later row replaces them.
    """
    if sink.emit == "every":
        return changes
    names = [name for name in ("key", "window_start", "window_end") if name in changes.column_names]
    columns = [changes.column(name).to_pylist() for name in names]
    last_rows: dict[Any, int] = {}
    for row, identity in enumerate(zip(*columns, strict=True)):
        # Remove the key and add it again: it must get the place of its last change.
        last_rows.pop(identity, None)
        if identity[0] is None:
            last_rows[row] = row
        else:
            last_rows[identity] = row
    return changes.take(pa.array(last_rows.values(), pa.int64()))


def _encode_keys(encode: Encoder, table: pa.Table, errors: dict[int, str], sink: Sink) -> pa.Array:
    """Encode each key. The encoder gets a text, or a `Windowed` if the keys have windows."""
    keys: list[str | None] = table.column("key").to_pylist()
    if not sink.is_windowed:
        return _encode_column(encode, keys, errors, sink)
    pairs: list[tuple[str, Bounds] | None] = []
    for key, bounds in zip(keys, _windows(table), strict=True):
        if key is None:
            pairs.append(None)
        else:
            pairs.append((key, bounds))
    return _encode_column(lambda pair: encode(windowed(*pair)), pairs, errors, sink)


def _partitions(
    choose: Callable[..., int],
    table: pa.Table,
    headers: Texts | None,
    errors: dict[int, str],
    sink: Sink,
) -> pa.Array:
    """Return the number that the author's function gives for each record's partition.

    The function gets a text as the key, or a `Windowed` if the keys have windows.
    """

    def chosen(record: tuple[Any, str | None, Any]) -> int:
        key, value, own_headers = record
        arguments = [key, value]
        if value is not None:
            arguments[1] = _decode(value)
        if isinstance(choose, WithHeaders):
            pairs = ((header["key"], header["value"]) for header in own_headers or ())
            arguments.append(Headers(pairs))
        number = choose(*arguments)
        if type(number) is not int or not 0 <= number < 1 << 31:
            raise ValueError(f"partition= must give a number of at least 0, not {number!r}")
        return number

    keys: list[Any] = table.column("key").to_pylist()
    # A function without a parameter for the key needs no `Windowed`.
    if sink.is_windowed and not isinstance(choose, WithoutKey):
        for row, bounds in enumerate(_windows(table)):
            if keys[row] is not None:
                keys[row] = windowed(keys[row], bounds)
    of_each: Iterable[Any] = repeat(None)
    if headers is not None and isinstance(choose, WithHeaders):
        of_each = headers.to_pylist()
    records = zip(keys, table.column("value").to_pylist(), of_each, strict=False)
    return pa.array(_computed(chosen, records, errors, sink), pa.int32())


def _windows(table: pa.Table) -> Iterator[Bounds]:
    """Return the window of each row."""
    return zip(*(table.column(name).to_pylist() for name in WINDOW), strict=True)


def _encode_column(
    encode: Encoder,
    values: Iterable[Any],
    errors: dict[int, str],
    sink: Sink,
) -> pa.Array:
    """Encode each key or value. If this fails for a row, adds the row's error to `errors`."""
    return pa.array(
        _computed(lambda value: _require_bytes(encode(value)), values, errors, sink),
        pa.binary(),
    )


def _encode_texts(
    registered: RegisteredEncoder,
    encode: Encoder,
    texts: pa.ChunkedArray,
    errors: dict[int, str],
    sink: Sink,
) -> pa.Array:
    """Like `_encode_column`, for JSON. Encodes many texts at once if they surely fit the schema."""
    rows = np.flatnonzero(texts.is_valid())
    present = pa.array([], pa.string())
    if rows.size:
        present = one_array(texts.drop_null())

    def one_by_one(start: int, piece: pa.Array) -> pa.Array:
        own_errors: dict[int, str] = {}
        encoded = _encode_column(encode, piece.to_pylist(), own_errors, sink)
        for place, problem in own_errors.items():
            errors[int(rows[start + place])] = problem
        return encoded

    encoded = registered.encode_texts(present, one_by_one)
    if not texts.null_count:
        return encoded
    places = np.zeros(len(texts), np.int64)
    places[rows] = np.arange(len(rows))
    return encoded.take(pa.array(places, mask=np.asarray(texts.is_null())))


def _computed(
    function: Callable[[Any], R],
    values: Iterable[Any],
    errors: dict[int, str],
    sink: Sink,
) -> list[R | None]:
    """Return the result of an author's function for each value that is not None.

    If the function fails for a row, adds the row's error to `errors`.
    """
    results: list[R | None] = []
    for row, value in enumerate(values):
        try:
            results.append(None if value is None else function(value))
        # An encoder may raise any error, even one that is not an Exception. `rejects_record`
        # decides whether the error rejects the record or ends the run.
        except BaseException as error:
            if not rejects_record(error):
                raise run_ending_error(
                    f"The encoder of {sink.topic} at {sink.at}",
                    error,
                    f"{value!s:.500}",
                ) from error
            errors[row] = describe_error(error)
            results.append(None)
    return results


def _require_bytes(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise TypeError(f"the encoder returned {type(data).__name__}, not bytes")
    return data


def _reject_errors(
    sink: Sink,
    table: pa.Table,
    records: pa.Table,
    errors: Mapping[int, str],
    rejected: RejectedOutput,
) -> pa.Table:
    """Reject the records that could not be encoded, and return the rest.

    Raise EngineError if `on_error="fail"`.
    """
    if sink.on_error == "fail":
        row, why = next(iter(errors.items()))
        raise RecordFailed(
            f"A record for {sink.topic} ({sink.at}) cannot be encoded: {why}, for the value "
            f"{table.column('value')[row]}.",
            next_step="Nothing from the batch was published. Correct the encoder, or continue "
            "without such records: "
            f'to("{sink.topic}", on_error="dead_letter").',
        )
    return records.filter(rejected.reject(sink, table, errors, "not_encoded"))


def accepted_records(
    sink: Sink | None,
    table: pa.Table,
    limits: TopicLimits,
    rejected: RejectedOutput,
) -> pa.Table:
    """Return the encoded records that their topic accepts.

    Sizes are measured before compression, because Kafka compresses several records together:
    whether a record is rejected must not depend on other records. If the sink has
    `on_error="fail"`, all records are sent, and the run fails when Kafka rejects a record.
    """
    if sink is None or sink.on_error == "fail" or not table.num_rows:
        return table
    sizes = record_sizes(table)
    table = _reject(
        sink, table, sizes > limits.size, rejected, "too_large",
        lambda row: f"{sizes[row]} bytes; {sink.topic} accepts at most {limits.size}",
    )  # fmt: skip
    # If a record without a key is sent to a compacted topic, the broker rejects the whole batch of
    # records. So reject only this record here.
    if limits.needs_key:
        has_no_key = np.asarray(pc.is_null(table.column("key")))
        table = _reject(
            sink,
            table,
            has_no_key,
            rejected,
            "null_key",
            lambda _: f"{sink.topic} is compacted, so records need a key",
        )
    if "timestamp" in table.column_names:
        now = time.time_ns() // 1_000_000
        # A record without a timestamp, or with timestamp 0, gets the time at which it is sent. So
        # treat its timestamp as the current time here.
        times = np.asarray(
            pc.fill_null(table.column("timestamp").cast(pa.int64()), 0).to_numpy(),
            np.int64,
        )
        ahead = np.where(times == 0, 0, times - now)
        table = _reject(
            sink, table, (ahead > limits.after_ms) | (ahead < -limits.before_ms), rejected,
            "timestamp",
            lambda row: f"timestamp {times[row]} ms; {sink.topic} accepts at most "
            f"{limits.after_ms} ms after the broker's clock and {limits.before_ms} ms before it",
        )  # fmt: skip
    return table


def _reject(
    sink: Sink, table: pa.Table, refused: Mask, rejected: RejectedOutput, reason: str,
    detail: Callable[[int], str],
) -> pa.Table:  # fmt: skip
    """Add the refused records to `rejected`. Returns the accepted records."""
    if not refused.any():
        return table
    errors = {row: detail(row) for row in np.flatnonzero(refused).tolist()}
    return table.filter(rejected.reject(sink, table, errors, reason))


def headers_with_window(table: pa.Table) -> pa.Array:
    """Return each record's headers, with two more headers for the bounds of its window."""
    headers = table.column("headers") if "headers" in table.column_names else None
    return with_more(headers, _window_headers(table))


def _without_schemas(sink: Sink, headers: pa.ChunkedArray) -> Texts:
    """Return the headers without those that name the schemas of the input records.

    If bytes are passed on unchanged, these headers stay, because the bytes still have these
    schemas.
    """
    if sink.encode is not None and sink.encode.value is encode_bytes:
        return headers
    names = pc.struct_field(pc.list_flatten(headers), "key")
    if not pc.any(pc.is_in(names, _SCHEMA_HEADERS)).as_py():
        return headers
    lists: list[Any] = []
    for own in headers.to_pylist():
        kept = [header for header in own or () if header["key"] not in (VALUE_HEADER, KEY_HEADER)]
        lists.append(kept)
    return pa.array(lists, HEADERS)


_SCHEMA_HEADERS = pa.array([VALUE_HEADER, KEY_HEADER])


def _with_header(
    headers: pa.ChunkedArray | None, count: int, value: bytes, name: str = VALUE_HEADER
) -> pa.Array:
    """Return the headers of each record, with one more header that names the schema."""
    names = pa.repeat(pa.scalar(name), count)
    values = pa.repeat(pa.scalar(value, pa.binary()), count)
    pairs = pa.StructArray.from_arrays([names, values], fields=[*HEADERS.value_type])
    ends = pa.array(np.arange(0, count + 1), pa.int32())
    return with_more(headers, pa.ListArray.from_arrays(ends, pairs).cast(HEADERS))


def _window_headers(table: pa.Table) -> pa.Array:
    """Headers with the bounds of each record's window."""
    bounds = np.stack([table.column(name).to_numpy() for name in WINDOW], axis=1)
    texts = pa.array(bounds.ravel()).cast(pa.string()).cast(pa.binary())
    names = pa.array([*WINDOW]).take(pa.array(np.tile((0, 1), len(table))))
    pairs = pa.StructArray.from_arrays([names, texts], fields=[*HEADERS.value_type])
    ends = pa.array(np.arange(0, len(pairs) + 1, 2), pa.int32())
    return pa.ListArray.from_arrays(ends, pairs).cast(HEADERS)
