"""`sluice query`: queries of stores."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from sluice.commands.console import (
    Form,
    FormOption,
    err,
    errors_as_messages,
    print_json,
    print_rows,
    printable,
)
from sluice.errors import NotFound
from sluice.settings import settings

if TYPE_CHECKING:
    from sluice.answers import Answer, Difference, Entry
    from sluice.answers import Store as StoreAnswer
    from sluice.client import Client

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Query stores through the REST API at SLUICE_URL, with SLUICE_TOKEN or as SLUICE_USER with "
        "SLUICE_PASSWORD."
    ),
)


Store = Annotated[str, typer.Argument(help="The store's name.", metavar="STORE")]
Field = Annotated[
    str,
    typer.Option(
        help=(
            "A field of the value, with dots for nested fields and backticks around a name with a "
            "dot; default: the value."
        )
    ),
]
Pipeline = Annotated[
    str | None, typer.Option(help="The pipeline, if several have a store of this name.")
]
AsOf = Annotated[
    str | None,
    typer.Option(
        help=(
            "A snapshot such as 1.42, run:NAME for the last snapshot of a run, or a time; default: "
            "the newest snapshot."
        )
    ),
]
Complete = Annotated[bool, typer.Option("--complete", help="Fail if a worker is unavailable.")]
Prefix = Annotated[str | None, typer.Option(help="Only keys with this prefix.")]
First = Annotated[str | None, typer.Option(help="Only this key and larger keys.")]
Last = Annotated[str | None, typer.Option(help="Only this key and smaller keys.")]
From = Annotated[
    str | None, typer.Option("--from", help="Only windows that start at this time or later.")
]
To = Annotated[
    str | None, typer.Option("--to", help="Only windows that start at this time or earlier.")
]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number of entries.")]

Local = Annotated[
    bool, typer.Option("--local", help="Read the ledger and shards directly, without a server.")
]


@app.command("stores")
def list_stores(form: FormOption = Form.TABLE) -> None:
    """List all stores that you may read."""
    with errors_as_messages(), _client() as client:
        print_rows([_store_row(store) for store in client.stores(entries=True)], form)


def _store_row(store: StoreAnswer) -> dict[str, Any]:
    return {
        "pipeline": store.pipeline,
        "store": store.store,
        "kind": store.kind,
        "entries": store.entries,
        "snapshot": None if store.snapshot is None else store.snapshot.id,
        "partial": store.partial,
    }


@app.command()
def get(
    store: Store,
    keys: Annotated[list[str], typer.Argument(help="One or more keys.", metavar="KEY...")],
    pipeline: Pipeline = None,
    as_of: AsOf = None,
    complete: Complete = False,
    local: Local = False,
    form: FormOption = Form.TABLE,
) -> None:
    """Look up keys; in a windowed store, the windows of one key."""
    read_point = _parameters(pipeline=pipeline, as_of=as_of)
    if complete:
        read_point["require"] = "complete"
    if local:
        from sluice.query.read_without_server import read_store

        with errors_as_messages():
            entries: list[Entry] = []
            for key in keys:
                entries += read_store(store, first=key, last=key, pipeline=pipeline, as_of=as_of)
            if not entries:
                raise _no_keys(store)
            _print_entries(entries, form)
        return
    with errors_as_messages(), _client() as client:
        # `get`, unlike `multi_get`, also finds keys of a windowed store, and returns all windows of
        # the key.
        if len(keys) == 1:
            answer = client.get(store, keys[0], **read_point)
        else:
            answer = client.multi_get(store, keys, **read_point)
        if not answer.entries and not answer.partial:
            raise _no_keys(store)
        _print_entries(answer.entries, form)
        _warn(answer)


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
    local: Local = False,
    form: FormOption = Form.TABLE,
) -> None:
    """Print entries in order, all from one snapshot."""
    selection = _parameters(
        prefix=prefix, first=first, last=last, start=start, end=end, pipeline=pipeline, as_of=as_of
    )
    with errors_as_messages():
        if local:
            from sluice.query.read_without_server import read_store
            from sluice.query.time_texts import parse_time

            for option, text in (("--from", start), ("--to", end)):
                # An error of `read_store` would name its own parameter, not the option of the
                # command.
                parse_time(option, text)
            # One entry more than the limit shows whether there are more entries.
            entries = read_store(store, limit=limit + 1, **selection)
            has_more = len(entries) > limit
            _print_entries(entries[:limit], form)
        else:
            from sluice.answers import MAX_PAGE
            from sluice.client.queries import join_answers

            with _client() as client:
                if complete:
                    selection["require"] = "complete"
                page = client.page(store, limit=min(limit, MAX_PAGE), **selection)
                pages = [page]
                left = limit - len(page.entries)
                while page.cursor and left > 0:
                    page = client.page(
                        store, limit=min(left, MAX_PAGE), cursor=page.cursor, **selection
                    )
                    pages.append(page)
                    left -= len(page.entries)
                has_more = page.cursor is not None
                answer = join_answers(pages)
                _print_entries(answer.entries, form)
                _warn(answer)
        if has_more:
            err.print(f"There are more than {limit:,} entries. Raise --limit to print them.")


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
    form: FormOption = Form.TABLE,
) -> None:
    """Count the entries of a store."""
    selection = _parameters(
        prefix=prefix, first=first, last=last, start=start, end=end, pipeline=pipeline, as_of=as_of
    )
    with errors_as_messages(), _client() as client:
        answer = client.count(store, **selection)
        print_rows([{"count": answer.count, "snapshot": answer.snapshot.id}], form)
        _warn(answer)


@app.command()
def top(
    store: Store,
    field: Field = "",
    limit: Limit = 10,
    smallest: Annotated[
        bool,
        typer.Option("--smallest", help="Print the entries with the smallest numbers instead."),
    ] = False,
    prefix: Prefix = None,
    start: From = None,
    end: To = None,
    pipeline: Pipeline = None,
    as_of: AsOf = None,
    form: FormOption = Form.TABLE,
) -> None:
    """Print the entries with the largest numbers in a field, largest first."""
    selection = _parameters(prefix=prefix, start=start, end=end, pipeline=pipeline, as_of=as_of)
    with errors_as_messages(), _client() as client:
        answer = client.top(store, field, limit=limit, smallest=smallest, **selection)
        _print_entries(answer.entries, form)
        _warn(answer)


@app.command()
def combine(
    store: Store,
    field: Field = "",
    group_by: Annotated[
        str,
        typer.Option(
            help="A field, _key, _start (the window's start), or _all for a single group."
        ),
    ] = "_all",
    order: Annotated[str, typer.Option(help="Sort by group, entries, sum, min or max.")] = "group",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of groups.")] = 1_000,
    prefix: Prefix = None,
    start: From = None,
    end: To = None,
    pipeline: Pipeline = None,
    as_of: AsOf = None,
    form: FormOption = Form.TABLE,
) -> None:
    """Print for each group the number of entries, and the sum, minimum and maximum of a field."""
    selection = _parameters(prefix=prefix, start=start, end=end, pipeline=pipeline, as_of=as_of)
    with errors_as_messages(), _client() as client:
        answer = client.combine(
            store, field, group_by=group_by, order=order, limit=limit, **selection
        )
        print_rows([msgspec.structs.asdict(group) for group in answer.groups], form)
        _warn(answer)


@app.command()
def diff(
    store: Store,
    before: Annotated[
        str,
        typer.Option(
            help=(
                "The first snapshot to compare: 1.40, 1.newest for the newest snapshot of "
                "generation 1, run:NAME for the last snapshot of a run, or a time."
            )
        ),
    ],
    after: Annotated[
        str | None,
        typer.Option(
            help=(
                "The second snapshot to compare, in the same forms as --before; default: the "
                "newest."
            )
        ),
    ] = None,
    pipeline: Pipeline = None,
    form: FormOption = Form.TABLE,
) -> None:
    """Compare two snapshots of a store.

    Count the same, changed, missing and added entries, and print examples.
    """
    with errors_as_messages(), _client() as client:
        answer = client.diff(store, before=before, after=after, pipeline=pipeline)
        if form is Form.JSON:
            print_json(answer)
            return
        counts = (
            f"{answer.same:,} same, {answer.changed:,} changed, {answer.missing:,} missing, "
            f"{answer.added:,} added"
        )
        err.print(f"{answer.before.id} and {answer.after.id}: {counts}", highlight=False)
        print_rows([_difference_row(example) for example in answer.examples], form)


def _difference_row(difference: Difference) -> dict[str, Any]:
    values = {"before": difference.before, "after": difference.after}
    return {"key": difference.key, **_bounds(difference), "kind": difference.kind, **values}


def _bounds(row: Difference | Entry) -> dict[str, str]:
    """Return the bounds of the window, or nothing in a store without windows."""
    if row.start is None or row.end is None:
        return {}
    return {"start": _time(row.start), "end": _time(row.end)}


@app.command()
def changes(
    store: Store,
    pipeline: Pipeline = None,
    since: Annotated[
        str | None, typer.Option(help="Start with the changes after this snapshot.")
    ] = None,
) -> None:
    """Print every new snapshot with its changed keys as a line of JSON, until Ctrl-C."""
    with errors_as_messages(), _client() as client:
        for change in client.changes(store, pipeline=pipeline, since=since):
            print_json(change)


def _client() -> Client:
    from sluice.client import Client

    token, user, password = settings().token, settings().user, settings().password
    return Client(settings().url, token=token or None, user=user or None, password=password or None)


def _parameters(**parameters: str | None) -> Any:
    """Return the parameters that have a value."""
    return {name: value for name, value in parameters.items() if value is not None}


def _print_entries(entries: Iterable[Entry], form: Form) -> None:
    print_rows([_row(entry) for entry in entries], form)


def _row(entry: Entry) -> dict[str, Any]:
    """Return the key, the window, the headers if there are any, and the fields of the value.

    A field named like another column becomes `value.NAME`.
    """
    row: dict[str, Any] = {"key": entry.key, **_bounds(entry)}
    if entry.headers or entry.headers_by_name:
        row["headers"] = msgspec.to_builtins(entry.headers or entry.headers_by_name)
    fields = entry.value if isinstance(entry.value, dict) else {"value": entry.value}
    for name, value in fields.items():
        column = name
        # Another field of the value may itself be named `value.NAME`, so the prefix may be needed
        # again.
        while column in row or (column != name and column in entry.value):
            column = f"value.{column}"
        row[column] = value
    return row


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")


def _warn(answer: Answer) -> None:
    from sluice.answers import unavailable

    reasons = unavailable(answer.workers)
    if reasons:
        err.print(
            "[yellow]The answer is incomplete:[/]", printable("; ".join(reasons)), soft_wrap=True
        )
    if answer.standby:
        reasons = []
        for worker in answer.workers:
            if worker.standby:
                reasons.append(f"worker {worker.number}: {worker.reason}")
        err.print("[yellow]Standbys answered:[/]", printable("; ".join(reasons)), soft_wrap=True)


def _no_keys(store: str) -> NotFound:
    return NotFound(
        f"Store {store!r} has none of these keys.",
        next_step=f"List its keys: sluice query scan {store}.",
    )
