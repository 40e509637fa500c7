"""Generate docs/reference.md and drawings from the code: public API, commands, settings, errors.

`make docs` runs it; a test fails if the page is out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer
from typing_extensions import TypeVar

import sluice
from docs import flowcharts, timelines
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
from sluice.client import queries
from sluice.commands.cli import app
from sluice.operators import processor
from sluice.query import Reader
from sluice.testing import Output, TopologyTestDriver, kafka
from sluice.topology import drawing, handles, load_pipeline
from sluice.values import change_values, contracts, expiry, record_metadata

HERE = Path(__file__).parent
PUBLIC: dict[str, list[Any]] = {
    "Topology": [
        sluice.Pipeline, sluice.Serde, sluice.PostgresTable, sluice.DeltaTable, sluice.Stream,
        sluice.GroupedStream, sluice.WindowedStream,
        sluice.Table, sluice.GlobalTable, sluice.GroupedTable, sluice.Processed, sluice.StoreOf,
        sluice.struct,
        sluice.tumbling, sluice.hopping, sluice.sliding, sluice.session, sluice.within,
        sluice.Window, contracts.Digits, key_text,
        topology.load_pipeline, topology.load_pipelines,
    ],
    "Formats": [
        sluice.Avro, sluice.Protobuf, sluice.JsonSchema,
        sluice.avro_key, sluice.protobuf_key, sluice.json_schema_key,
        sluice.kafka_value, sluice.kafka_key, sluice.debezium, sluice.debezium_key,
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
    "Graph.keeps_headers",
    "Graph.nodes_of",
    "Graph.part",
    "Graph.without",
    "Headers.json",
    "Headers.of_json",
    "Pipeline.needs_delta",
    "Pipeline.require_kept_stores",
    "Pipeline.require_streams",
    "PostgresTable.destination",
    "PostgresTable.folded_name",
    "PostgresTable.identity_columns",
    "PostgresTable.place",
    "PostgresTable.refusal",
}
"""Methods for the engine."""
_LONGEST_LINE = 96
_WITHOUT_MEMBERS = {sluice.Window}
"""Authors only pass these on; their methods are for the engine."""
_MADE_BY_METHODS = {
    sluice.Stream, sluice.GroupedStream, sluice.WindowedStream, sluice.Table, sluice.GlobalTable,
    sluice.GroupedTable, sluice.Processed, processor.Processor, processor.Context, processor.Store,
    processor.ReadOnlyTable, processor.ValueProcessor, processor.ValueContext, Stores,
}  # fmt: skip


_CHOICES: dict[str, Any] = {
    "CheckOld": change_values.CheckOld,
    "Clock": processor.Clock,
    "Emit": record_metadata.Emit,
    "EmitStrategy": record_metadata.EmitStrategy,
    "ExpiryClock": expiry.ExpiryClock,
    "How": record_metadata.How,
    "OnError": record_metadata.OnError,
    "OnMissing": record_metadata.OnMissing,
    "OnNull": record_metadata.OnNull,
    "OnTime": record_metadata.OnTime,
}
"""Names of types in signatures in whose place the page lists the possible texts."""
_TYPES = {
    "Duration": 'A text with a unit (`"500 ms"`, `"10 seconds"`, `"2 hours"`, `"1 day"`), '
    "or a `timedelta`.",
    "Function": "A Python function; see above for its arguments.",
    "Contract": "A type of values: Struct, dataclass, TypedDict, pydantic model, "
    "union, `str`, `int` ...",
    "Value[V]": "A contract, or a `Serde`.",
    "Column": "An SQL expression, or a mapping of names to expressions, "
    "which makes a nested object.",
    "Partitioner": "A function of the value, or of key and value, that returns a number.",
    "Size": 'A duration, or a number of weeks, months or years: `"1 month"`.',
}


def page() -> str:
    """Return the reference, as Markdown."""
    parts = ["# Reference\n\nGenerated from the docstrings by `make docs`.", _extras(), _types()]
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
    pictures: dict[str, str] = {}
    for name in examples.NAMES:
        picture = drawing.svg(load_pipeline(HERE.parent / "spark_jobs", name))
        # The lines of the examples change more often than their topologies.
        pictures[f"{name}.svg"] = re.sub(r' data-at="[^"]*"', "", picture)
    drawn = timelines.PICTURES | flowcharts.PICTURES
    pictures |= {f"{name}.svg": picture() for name, picture in drawn.items()}
    return {name: f"{picture}\n" for name, picture in pictures.items()}


def _extras() -> str:
    """Return the columns of every record, and what Python functions are called with."""
    columns = ", ".join(f"`{name}` ({kind})" for name, kind in record_metadata.METADATA.items())
    rule = (inspect.getdoc(handles) or "").partition("\n\n")[2]
    return (
        "Every expression can read the value's fields and these columns: "
        f"{columns}.\n\n{' '.join(rule.split())}"
    )


def _types() -> str:
    """Explain the names that stand for types in the tables of parameters."""
    rows = ["| type | means |", "| --- | --- |"]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in _TYPES.items()]
    return "## Types of parameters\n\n" + "\n".join(rows)


def _describe(thing: Any) -> str:
    """Describe a class or a function: its docstring, its parameters, and the members of a class."""
    parts = [f"### `{thing.__name__}`", *_body(thing)]
    for name, member in _members(thing):
        parts.append(f"#### `{thing.__name__}.{name}`")
        parts += [_text(member.fget)] if isinstance(member, property) else _body(member)
    return "\n\n".join(parts)


def _body(thing: Any) -> list[str]:
    """Return the signature, the docstring and a table of the parameters of a class or function."""
    if thing in _MADE_BY_METHODS:
        return [_text(thing)]
    signature = inspect.signature(thing)
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    shown = [f"```py\n{_call(thing.__name__, parameters, signature)}\n```", _text(thing)]
    if parameters:
        rows = ["| parameter | type | default |", "| --- | --- | --- |"]
        made = _made_by_factories(thing)
        for one in parameters:
            rows += _unpacked(one) or [_row(one, made.get(one.name, one.default))]
        shown.append("\n".join(rows))
    return shown


def _members(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield public methods and properties in source order, but none of a base class on the page."""
    described = {one for objects in PUBLIC.values() for one in objects} - {kind} | _WITHOUT_MEMBERS
    listed: set[str] = set()
    for base in getattr(kind, "__mro__", ()):
        if not base.__module__.startswith("sluice.") or base in described:
            continue
        for name, member in vars(base).items():
            is_hidden = name.startswith("_") or f"{base.__name__}.{name}" in _HIDDEN
            is_described = inspect.isfunction(member) or isinstance(member, property)
            if is_hidden or name in listed or not is_described or not inspect.getdoc(member):
                continue
            listed.add(name)
            yield name, member


def _call(name: str, parameters: list[inspect.Parameter], signature: inspect.Signature) -> str:
    """Show how a class or a function is called: names only, because the table has the types."""
    texts: list[str] = []
    may_be_positional = True
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and may_be_positional:
            texts.append("*")
        may_be_positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        texts.append(f"{_stars(parameter)}{parameter.name}")
    returned = signature.return_annotation
    is_shown = returned not in (signature.empty, None, "None")
    returns = f" -> {_type(returned)}" if is_shown else ""
    in_one_line = f"{name}({', '.join(texts)}){returns}"
    if len(in_one_line) <= _LONGEST_LINE:
        return in_one_line
    return "\n".join(textwrap.wrap(in_one_line, _LONGEST_LINE, subsequent_indent="    "))


def _made_by_factories(thing: Any) -> dict[str, Any]:
    """Return the defaults of a dataclass that functions make: name of the parameter → default."""
    if not dataclasses.is_dataclass(thing):
        return {}
    factories = {field.name: field.default_factory for field in dataclasses.fields(thing)}
    return {
        name: factory() for name, factory in factories.items() if factory is not dataclasses.MISSING
    }


def _unpacked(parameter: inspect.Parameter) -> list[str]:
    """Return a row for each key of the TypedDict that a parameter like `**part` unpacks, if any."""
    for kind in (queries.RangeParameters, queries.ReadPoint):
        if parameter.annotation == f"Unpack[{kind.__name__}]":
            return [
                f"| `{name}` | `{_type(hint)}` | left out |"
                for name, hint in get_type_hints(kind).items()
            ]
    return []


def _row(parameter: inspect.Parameter, value: Any) -> str:
    kind = _type(parameter.annotation).replace("|", r"\|")
    default = "required" if value is parameter.empty else _default(value)
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        default = ""
    return f"| `{_stars(parameter)}{parameter.name}` | `{kind}` | {default} |"


def _stars(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return "*"
    return "**" if parameter.kind is parameter.VAR_KEYWORD else ""


def _type(annotation: Any) -> str:
    """Write a type as the source does, but with a Literal's possible texts instead of its name."""
    if isinstance(annotation, type | TypeVar) and not get_args(annotation):
        return annotation.__name__
    text = str(annotation).strip('"').replace("'", '"')
    for name, choices in _CHOICES.items():
        texts = " | ".join(f'"{choice}"' for choice in get_args(choices))
        text = re.sub(rf"\b{name}\b", texts, text)
    return re.sub(r"\b(?:typing|typing_extensions|collections\.abc|msgspec)\.", "", text)


def _default(value: Any) -> str:
    """Write a default as an author would."""
    if isinstance(value, type):
        return f"`{value.__name__}`"
    if value is ...:
        return "left out"
    if inspect.isfunction(value):
        return "a function"
    if isinstance(value, Mapping):
        value = dict(value)
    text = repr(value).replace("'", '"')
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        text = f"{type(value).__name__}()"
    return f"`{text}`".replace("|", r"\|")


def _text(thing: Any) -> str:
    """Return the docstring, with the lines of each paragraph joined."""
    paragraphs = (inspect.getdoc(thing) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _after_first_line(text: str | None) -> str:
    return (text or "").partition("\n")[2].strip()


def _commands() -> Iterator[str]:
    command: Any = typer.main.get_command(app)
    for name, one in _leaves(command, "sluice"):
        parts = [f"### `{name}`", one.get_short_help_str(200)]
        parameters = [parameter for parameter in one.params if parameter.name != "help"]
        if parameters:
            rows = ["| parameter | meaning | default |", "| --- | --- | --- |"]
            rows += [_command_row(parameter) for parameter in parameters]
            parts.append("\n".join(rows))
        yield "\n\n".join(parts)


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for sub, one in getattr(command, "commands", {}).items():
        yield from (
            _leaves(one, f"{name} {sub}") if hasattr(one, "commands") else [(f"{name} {sub}", one)]
        )


def _command_row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    name = parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper()
    has_default = parameter.default not in (None, False, "") and not parameter.required
    default = "required" if parameter.required else ""
    if has_default:
        default = f"`{parameter.default}`"
    meaning = (parameter.help or "").replace("|", r"\|")
    return f"| `{name}` | {meaning} | {default} |"


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
