"""Turns output records into a table's rows, and rejects records that do not fit its columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from sluice.engine.batch.dead_letters import RejectedOutput
from sluice.engine.batch.row_schemas import SORT_KEY, has_origin, offset_of, partition_of
from sluice.engine.publish.encode import headers_with_window, latest_changes
from sluice.errors import EngineError
from sluice.plan import Job, Sink
from sluice.sinks.target import Column, Row, Rows
from sluice.values import row_order
from sluice.values.sink_tables import POSITION, WINDOW
from sluice.values.utc_times import utc_datetime

NOT_FITTING = "not_encoded"
"""The reason in the dead letters of records that do not fit a table."""

_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL = msgspec.Raw(b"null")


def table_rows(
    sink: Sink,
    columns: Sequence[Column],
    table: pa.Table,
    rejected: RejectedOutput,
) -> Rows:
    """Return the rows for output records.

    `table` has the columns `key` and `value`, and columns that identify the row: the window's
    bounds if the sink is windowed, else the record's position.

    Records that do not fit are added to `rejected`; if the sink has `on_error="fail"`, they raise
    EngineError instead.
    """
    assert sink.table is not None
    table = latest_changes(sink, table)
    written, deleted = list[Row](), list[Row]()
    errors: dict[int, str] = {}
    key_column = columns[0]
    others = columns[len(sink.table.identity_columns(is_windowed=sink.is_windowed)) :]
    keys, values = table.column("key").to_pylist(), table.column("value").to_pylist()
    records = zip(keys, values, _row_places(sink, table), strict=True)
    for number, (key, value, place) in enumerate(records):
        try:
            if sink.table.key is None:
                identity: Row = place
            elif key is None:
                raise ValueError("the record has no key")
            else:
                identity = (_key(key_column, key), *map(utc_datetime, place))
            if value is not None:
                if sink.scalar:
                    fields = {"value": msgspec.Raw(value.encode())}
                else:
                    fields = _fields_of(value)
                if (
                    sink.table.key in fields
                    and key_column.encode(bytes(fields[sink.table.key])) != identity[0]
                ):
                    raise ValueError(f"the field {sink.table.key} differs from the record's key")
                row = [*identity]
                row += [column.encode(bytes(fields.get(column.name, _NULL))) for column in others]
                written.append(tuple(row))
            elif sink.table.key is None:
                raise ValueError("the record has no value")
            else:
                deleted.append(identity)
        except (ValueError, OverflowError) as error:
            errors[number] = str(error)
    if errors:
        table = _reject_errors(sink, table, errors, rejected)
    if sink.is_windowed:
        headers = headers_with_window(table)
        names = [name for name in table.column_names if name != "headers"]
        table = table.select(names).append_column("headers", headers)
    return Rows(written, deleted, table)


def join_rows(parts: Iterable[Rows]) -> Rows:
    """Return one `Rows` with the rows of all parts."""
    tables: list[pa.Table] = []
    written: list[Row] = []
    deleted: list[Row] = []
    for part in parts:
        tables.append(part.records)
        written += part.written
        deleted += part.deleted
    records = pa.table({})
    if tables:
        records = pa.concat_tables(tables)
    return Rows(written, deleted, records)


def _key(column: Column, key: str) -> Any:
    """Return the value for the key's column.

    In a column of numbers, the key's text becomes a number.
    """
    try:
        if column.is_text or not _is_number(key):
            return column.encode(msgspec.json.encode(key))
        return column.encode(key.encode())
    except ValueError as error:
        raise ValueError(f"the key does not fit: {error}") from None


def _is_number(text: str) -> bool:
    """Return whether the text is a whole number in its usual form.

    A text such as `007` does not count as a number, because it would become the same number as `7`.
    """
    return text.removeprefix("-").isdecimal() and text.isascii() and str(int(text)) == text


def _row_places(sink: Sink, table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield the values that identify each record's row, besides its key.

    If the sink appends rows, this is the record's position. Otherwise, it is the window's bounds,
    or nothing if the sink has no windows.
    """
    names: Sequence[str] = ()
    if sink.appends:
        names = [*POSITION]
    elif sink.is_windowed:
        names = [*WINDOW]
    if not names:
        return repeat((), table.num_rows)
    columns = [table.column(name).to_pylist() for name in names]
    return zip(*columns, strict=True)


def _reject_errors(
    sink: Sink,
    table: pa.Table,
    errors: dict[int, str],
    rejected: RejectedOutput,
) -> pa.Table:
    """Reject the records that do not fit, and return the rest.

    If the sink has `on_error="fail"`, raise EngineError instead.
    """
    if sink.on_error == "fail":
        row, why = next(iter(errors.items()))
        raise EngineError(
            f"A record for {sink.topic} ({sink.at}) does not fit: {why}. "
            f"Its key is {table.column('key')[row]}.",
            next_step="Nothing from the batch was published. Correct the column's type or the step "
            "before the output, or continue "
            'without such records: to(..., on_error="dead_letter").',
        )
    return table.filter(rejected.reject(sink, table, errors, NOT_FITTING))


def with_positions(job: Job, rows: pa.Table) -> pa.Table:
    """Add the position columns to sorted rows from operators.

    Rows that the clock causes, such as the results of timers, come from no record. Their topic is
    empty, and their offset is the time at which they were due, in epoch ms. In place of a row
    number, they have a hash of the operator, the key, the timer's name, the number of the record or
    timer that set the timer, and the number of the result. Their position therefore does not depend
    on the batch in which the timer fires.
    """
    topics = job.topics_by_source
    places: list[tuple[str, int, int, int]] = []
    number_of: Counter[tuple[Any, ...]] = Counter()
    """Record, or other cause of rows (such as a timer) → the number of these rows so far."""
    positions = [rows.column(name).to_pylist() for name in SORT_KEY]
    for sequence, origin, path in zip(*positions, strict=True):
        if has_origin(sequence):
            source, partition = partition_of(origin)
            place = topics[source], partition, offset_of(origin)
            places.append((*place, number_of[place]))
            number_of[place] += 1
        else:
            due, event = row_order.event_of(path)
            row_number = row_order.hash_of(b"%d/%b" % (number_of[due, event], event))
            places.append(("", -1, due, row_number))
            number_of[due, event] += 1
    columns = zip(*places, strict=True) if places else repeat(())
    for name, column in zip(POSITION, columns, strict=False):
        kind = pa.string() if name == "_topic" else pa.int64()
        rows = rows.append_column(name, pa.array(column, kind))
    return rows
