"""Generate docs/reference.md and the drawings from the code: public API, commands, settings, errors.

`make docs` runs it; a test fails if the page is out of date.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typing_extensions import TypeVar

import sluice
from docs import timelines
from sluice import (
    Client,
    Routes,
    Stores,
    client,
    errors,
    examples,
    key_text,
    query,
    read_store,
    settings,
    topology,
)
from sluice.commands.cli import app
from sluice.operators import processor
from sluice.query import Reader
from sluice.testing import Output, TopologyTestDriver, kafka
from sluice.topology import drawing, handles, load_pipeline
from sluice.values import contracts
from sluice.values.record_metadata import METADATA

HERE = Path(__file__).parent
PUBLIC: dict[str, list[Any]] = {
    "Topology": [
        sluice.Pipeline, sluice.Serde, sluice.PostgresTable, sluice.DeltaTable, sluice.Stream,
        sluice.GroupedStream, sluice.WindowedStream,
        sluice.Table, sluice.GlobalTable, sluice.GroupedTable, sluice.Processed, sluice.struct,
        sluice.tumbling, sluice.hopping, sluice.sliding, sluice.session, sluice.within, sluice.Window,
        contracts.Digits, key_text,
        topology.load_pipeline, topology.load_pipelines,
    ],
    "Processors": [
        processor.Processor,
        processor.Record,
        sluice.Headers,
        processor.Context,
        processor.ValueProcessor,
        processor.ValueContext,
        processor.Store,
        processor.ReadOnlyTable,
        processor.Timer,
    ],
    "Querying the REST API from Python": [
        Client, client.Entries, client.Entry, client.Groups, client.Group, client.Change,
    ],
    "Routes of your own": [Routes, Stores],
    "Querying shards from Python": [read_store, Reader, query.AsOf, query.Answer, query.Entry],
    "Testing": [TopologyTestDriver, Output, kafka.EmbeddedKafka],
}  # fmt: skip
"""The public API; everything else may change without notice."""
_HIDDEN = {
    "AsOf.has_bounds",
    "AsOf.is_reached",
    "AsOf.require_reached",
    "AsOf.require_topics",
    "ContextBase.expire",
    "ContextBase.turn_to",
    "ContextBase.turn_to_key",
    "ContextBase.turn_to_record",
    "DeltaTable.destination",
    "DeltaTable.folded_name",
    "DeltaTable.identity_columns",
    "DeltaTable.place",
    "DeltaTable.refusal",
    "Graph.add",
    "Graph.claim",
    "Graph.claim_pattern",
    "Graph.part",
    "Graph.without",
    "Headers.json",
    "Headers.of_json",
    "Pipeline.needs_delta",
    "Pipeline.require_streams",
    "PostgresTable.destination",
    "PostgresTable.folded_name",
    "PostgresTable.identity_columns",
    "PostgresTable.place",
    "PostgresTable.refusal",
}
"""Methods for the engine."""
_WITHOUT_MEMBERS = {sluice.Window}
"""Authors only pass these on; their methods are for the engine."""
_MADE_BY_METHODS = {
    sluice.Stream, sluice.GroupedStream, sluice.WindowedStream, sluice.Table, sluice.GlobalTable,
    sluice.GroupedTable, sluice.Processed, processor.Processor, processor.Context, processor.Store,
    processor.ReadOnlyTable, processor.ValueProcessor, processor.ValueContext, Stores,
}  # fmt: skip


def page() -> str:
    """The reference, as Markdown."""
    parts = ["# Reference\n\nGenerated from the docstrings by `make docs`.", _extras()]
    for title, objects in PUBLIC.items():
        parts += [f"## {title}", *(_describe(one) for one in objects)]
    parts += [
        "## Commands",
        *_commands(),
        "## Settings",
        _after_first_line(settings.__doc__),
        "## Errors",
        _errors(),
    ]
    return "\n\n".join(parts) + "\n"


def drawings() -> dict[str, str]:
    """File name and content of each drawing."""
    pictures = {
        f"{name}.svg": drawing.svg(load_pipeline(HERE.parent / "spark_jobs", name))
        for name in examples.NAMES
    }
    pictures |= {f"windows-{picture.__name__}.svg": picture() for picture in timelines.PICTURES}
    return {name: f"{picture}\n" for name, picture in pictures.items()}


def _extras() -> str:
    """The columns of every record, and what Python functions are called with."""
    columns = ", ".join(f"`{name}` ({kind})" for name, kind in METADATA.items())
    rule = (inspect.getdoc(handles) or "").partition("\n\n")[2]
    return f"Every expression can read the value's fields and these columns: {columns}.\n\n{' '.join(rule.split())}"


def _describe(thing: Any) -> str:
    signature = "" if thing in _MADE_BY_METHODS else _signature(thing)
    members = [f"- **`{name}{signature}`**: {text}" for name, signature, text in _members(thing)]
    return "\n\n".join(
        [
            f"### `{thing.__name__}{signature}`",
            _text(thing),
            *(["\n".join(members)] if members else []),
        ]
    )


def _members(kind: Any) -> Iterator[tuple[str, str, str]]:
    """Public methods and properties in source order, without those of a base class that the page describes."""
    described = {one for objects in PUBLIC.values() for one in objects} - {kind} | _WITHOUT_MEMBERS
    listed: set[str] = set()
    for base in (
        one for one in getattr(kind, "__mro__", ()) if one.__module__.startswith("sluice.")
    ):
        for name, member in vars(base).items() if base not in described else ():
            is_hidden = name.startswith("_") or f"{base.__name__}.{name}" in _HIDDEN
            if is_hidden or name in listed or not inspect.getdoc(member):
                continue
            listed.add(name)
            if inspect.isfunction(member):
                yield name, _signature(member), _text(member)
            elif isinstance(member, property):
                yield name, "", _text(member)


def _signature(thing: Any) -> str:
    signature = inspect.signature(thing)
    parameters = [
        _with_default(parameter)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    keyword_only = next((i for i, (_, is_keyword) in enumerate(parameters) if is_keyword), None)
    texts = [text for text, _ in parameters]
    if keyword_only is not None and not any(text.startswith("*") for text in texts[:keyword_only]):
        texts.insert(keyword_only, "*")
    result = signature.return_annotation
    returns = f" -> {result}" if isinstance(result, str) and result != "None" else ""
    return f"({', '.join(texts)}){returns}"


def _with_default(parameter: inspect.Parameter) -> tuple[str, bool]:
    """A parameter as written in the source, and whether it is keyword-only."""
    star = (
        "*"
        if parameter.kind is parameter.VAR_POSITIONAL
        else "**"
        if parameter.kind is parameter.VAR_KEYWORD
        else ""
    )
    simple = isinstance(parameter.default, str | int | None)
    default = (
        ""
        if parameter.default is parameter.empty
        else f" = {parameter.default!r}"
        if simple
        else " = ..."
    )
    declared = parameter.annotation
    annotation = (
        (declared.__name__ if isinstance(declared, TypeVar) else str(declared))
        .strip('"')
        .replace("'", '"')
    )
    return (
        f"{star}{parameter.name}: {annotation}{default}",
        parameter.kind is parameter.KEYWORD_ONLY,
    )


def _text(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def _after_first_line(text: str | None) -> str:
    return (text or "").partition("\n")[2].strip()


def _commands() -> Iterator[str]:
    command: Any = typer.main.get_command(app)
    for name, one in _leaves(command, "sluice"):
        parameters = [_parameter(parameter) for parameter in one.params if parameter.name != "help"]
        yield "\n\n".join(
            [
                f"### `{name}`",
                one.get_short_help_str(200),
                *(["\n".join(parameters)] if parameters else []),
            ]
        )


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for sub, one in getattr(command, "commands", {}).items():
        yield from (
            _leaves(one, f"{name} {sub}") if hasattr(one, "commands") else [(f"{name} {sub}", one)]
        )


def _parameter(parameter: Any) -> str:
    shown = (
        parameter.opts[0]
        if parameter.param_type_name == "option"
        else parameter.metavar or parameter.name.upper()
    )
    default = (
        ""
        if parameter.default in (None, False, "") or parameter.required
        else f" Default: {parameter.default}."
    )
    return f"- `{shown}`: {parameter.help or ''}{default}"


def _errors() -> str:
    rows = ["| error | status | title | means |", "| --- | --- | --- | --- |"]
    kinds = [
        one
        for one in vars(errors).values()
        if inspect.isclass(one) and issubclass(one, errors.SluiceError)
    ]
    rows += [
        f"| `{kind.__name__}` | {kind.status} | {kind.title} | {_text(kind)} |" for kind in kinds
    ]
    return "\n".join(rows)


def main() -> None:
    """Write the page and the drawings."""
    (HERE / "reference.md").write_text(page())
    for name, content in drawings().items():
        (HERE / "images" / name).write_text(content)


if __name__ == "__main__":
    main()
