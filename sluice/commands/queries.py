"""Asking stores from the command line: `sluice query`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from sluice.commands.console import err, out, said
from sluice.settings import settings

if TYPE_CHECKING:
    from rich.text import Text

    from sluice.answers import Answer
    from sluice.client import Client
    from sluice.client.queries import Part

app = typer.Typer(
    no_args_is_help=True,
    help="Ask stores by the REST view at SLUICE_URL, with SLUICE_TOKEN or as SLUICE_USER with SLUICE_PASSWORD.",
)


class Form(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


_ENCODER = msgspec.json.Encoder(decimal_format="number")

Store = Annotated[str, typer.Argument(help="The store's name.", metavar="STORE")]
Field = Annotated[str, typer.Option(help="A field of the value, with points for fields within; none: the value.")]
Printed = Annotated[Form, typer.Option("--format", help="How it is printed.")]
Pipeline = Annotated[str | None, typer.Option(help="Where several pipelines have a store of this name.")]
AsOf = Annotated[str | None, typer.Option(help="A snapshot 1.42, run:NAME, or a time; default: the newest snapshot.")]
Complete = Annotated[bool, typer.Option("--complete", help="Fail if a worker is unavailable.")]
Prefix = Annotated[str | None, typer.Option(help="Keys that begin with this.")]
First = Annotated[str | None, typer.Option(help="The least key.")]
Last = Annotated[str | None, typer.Option(help="The greatest key.")]
From = Annotated[str | None, typer.Option("--from", help="Windows that start at this time or later.")]
To = Annotated[str | None, typer.Option("--to", help="Windows that start at this time or earlier.")]
Limit = Annotated[int, typer.Option(min=1, help="How many at most.")]


@app.command("stores")
def list_stores(form: Printed = Form.TABLE) -> None:
    """List all stores you may read."""
    with said(), _client() as client:
        found = client.stores(entries=True)
        rows = [
            {"pipeline": one.pipeline, "store": one.store, "kind": one.kind, "entries": one.entries,
             "snapshot": one.snapshot.id if one.snapshot else None, "partial": one.partial}
            for one in found
        ]  # fmt: skip
        _print(rows, form)


@app.command()
def get(
    store: Store,
    keys: Annotated[list[str], typer.Argument(help="One key or several.", metavar="KEY...")],
    pipeline: Pipeline = None,
    as_of: AsOf = None,
    complete: Complete = False,
    form: Printed = Form.TABLE,
) -> None:
    """Look up keys; of a store with windows, one key's windows."""
    moment: Any = _part(pipeline=pipeline, as_of=as_of, require="complete" if complete else None)
    with said(), _client() as client:
        found = client.get(store, keys[0], **moment) if len(keys) == 1 else client.multi_get(store, keys, **moment)
        _entries(found, found.entries, form)


@app.command("range")
def scan(
    store: Store,
    prefix: Prefix = None,
    first: First = None,
    last: Last = None,
    start: From = None,
    end: To = None,
    limit: Limit = 1_000,
    pipeline: Pipeline = None,
    as_of: AsOf = None,
    complete: Complete = False,
    form: Printed = Form.TABLE,
) -> None:
    """Print the entries of a store, or of a part of it, in order, all of one snapshot."""
    part = _part(prefix=prefix, first=first, last=last, start=start, end=end, pipeline=pipeline, as_of=as_of,
                 require="complete" if complete else None)  # fmt: skip
    with said(), _client() as client:
        found = client.page(store, limit=min(limit, 1_000), **part)
        entries, page = list(found.entries), found
        while page.cursor and len(entries) < limit:
            page = client.page(store, limit=min(limit - len(entries), 1_000), cursor=page.cursor, **part)
            entries += page.entries
        _entries(found, entries, form)
        if page.cursor:
            err.print(f"There are more than {limit:,}; --limit says how many are printed.")


@app.command()
def count(
    store: Store,
    prefix: Prefix = None,
    first: First = None,
    last: Last = None,
    start: From = None,
    end: To = None,
    pipeline: Pipeline = None,
    as_of: AsOf = None,
    form: Printed = Form.TABLE,
) -> None:
    """Count the entries of a store, or of a part of it."""
    part = _part(prefix=prefix, first=first, last=last, start=start, end=end, pipeline=pipeline, as_of=as_of)
    with said(), _client() as client:
        found = client.count(store, **part)
        _print([{"count": found.count, "snapshot": found.snapshot.id}], form)
        _warn(found)


@app.command()
def top(
    store: Store,
    field: Field = "",
    limit: Limit = 10,
    smallest: Annotated[bool, typer.Option("--smallest", help="The smallest in place of the largest.")] = False,
    prefix: Prefix = None,
    start: From = None,
    end: To = None,
    pipeline: Pipeline = None,
    as_of: AsOf = None,
    form: Printed = Form.TABLE,
) -> None:
    """Print the entries with the largest numbers."""
    part = _part(prefix=prefix, start=start, end=end, pipeline=pipeline, as_of=as_of)
    with said(), _client() as client:
        found = client.top(store, field, limit=limit, smallest=smallest, **part)
        _entries(found, found.entries, form)


@app.command()
def combine(
    store: Store,
    field: Field = "",
    group_by: Annotated[str, typer.Option(help="A field; _key; _start of the window; _all for one group.")] = "_all",
    order: Annotated[str, typer.Option(help="group, entries, sum, min or max.")] = "group",
    limit: Limit = 1_000,
    prefix: Prefix = None,
    start: From = None,
    end: To = None,
    pipeline: Pipeline = None,
    as_of: AsOf = None,
    form: Printed = Form.TABLE,
) -> None:
    """Aggregate the entries by group: their number, and sum, minimum and maximum of a field."""
    part = _part(prefix=prefix, start=start, end=end, pipeline=pipeline, as_of=as_of)
    with said(), _client() as client:
        found = client.combine(store, field, group_by=group_by, order=order, limit=limit, **part)
        _print([msgspec.structs.asdict(group) for group in found.groups], form)
        _warn(found)


@app.command()
def changes(
    store: Store,
    pipeline: Pipeline = None,
    since: Annotated[str | None, typer.Option(help="Begin with what came after this snapshot.")] = None,
) -> None:
    """Print every new snapshot and the keys it changed, a line of JSON each, until Ctrl-C."""
    with said(), _client() as client:
        for change in client.changes(store, pipeline=pipeline, since=since):
            out.print(_ENCODER.encode(change).decode(), markup=False, soft_wrap=True)


def _client() -> Client:
    from sluice.client import Client

    known = settings()
    return Client(known.url, token=known.token or None, user=known.user or None, password=known.password or None)


def _part(**given: str | None) -> Part:
    known: Any = {name: value for name, value in given.items() if value is not None}
    part: Part = known
    return part


def _entries(found: Answer, entries: Iterable[Any], form: Form) -> None:
    _print([_row(one) for one in entries], form)
    _warn(found)


def _row(entry: Any) -> dict[str, Any]:
    """An entry as a row: its key, its window, then its value's fields; one that has a name of these is `value.NAME`."""
    row = {"key": entry.key}
    if entry.start and entry.end:
        row |= {"start": _time(entry.start), "end": _time(entry.end)}
    for name, value in (entry.value if isinstance(entry.value, dict) else {"value": entry.value}).items():
        column = name
        while column in row or (column != name and column in entry.value):
            column = f"value.{column}"
        row[column] = value
    return row


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")


def _print(rows: list[dict[str, Any]], form: Form) -> None:
    {Form.TABLE: _as_table, Form.JSON: _as_json, Form.CSV: _as_csv}[form](rows)


def _as_json(rows: list[dict[str, Any]]) -> None:
    out.print(_ENCODER.encode(rows).decode(), markup=False, soft_wrap=True)


def _as_csv(rows: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(sys.stdout, _columns(rows))
    writer.writeheader()
    writer.writerows({name: _state_row(value) for name, value in row.items()} for row in rows)


def _as_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    names = _columns(rows)
    for name in names:
        figures = all(isinstance(row.get(name), int | Decimal | None) for row in rows)
        table.add_column(_printable(name), justify="right" if figures else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_printable(_state_row(row.get(name))) for name in names))
    # As wide as it is: in a narrow terminal lines go on below, in a pipe nothing is cut off.
    width = out.measure(table, options=out.options.update(max_width=1_000_000)).maximum
    Console(width=max(width, 1), highlight=False, emoji=False).print(table)


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _state_row(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _ENCODER.encode(value).decode()


def _printable(text: str) -> Text:
    """The text itself, never markup; what a terminal would obey is replaced."""
    from rich.text import Text

    return Text("".join(letter if letter.isprintable() else "�" for letter in text))


def _warn(found: Answer) -> None:
    if found.partial:
        lost = [f"worker {one.number}: {one.reason}" for one in found.workers if one.status != "ok"]
        err.print("[yellow]Something is missing:[/]", _printable("; ".join(lost)), soft_wrap=True)
