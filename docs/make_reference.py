"""Write docs/reference.md and the drawings from the code: what an author uses, commands, settings, errors.

`make docs` runs it; a test fails when a docstring has changed and the page has not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from sluice import Client, client, errors, query, settings, topology
from sluice.cli import app
from sluice.operators import processor
from sluice.query import Reader
from sluice.testing import Output, TopologyTestDriver, kafka
from sluice.topology import drawing, load_pipeline
from sluice.values import contracts
from sluice.values.records import METADATA

HERE = Path(__file__).parent
PUBLIC: dict[str, list[Any]] = {
    "Topology": [
        topology.Pipeline, topology.Serde, topology.Stream, topology.GroupedStream, topology.WindowedStream,
        topology.Table, topology.GlobalTable, topology.GroupedTable, topology.tumbling, topology.hopping,
        topology.sliding, topology.session, topology.within, topology.Window, contracts.Digits,
        topology.load_pipeline, topology.load_pipelines,
    ],
    "Processors": [processor.Processor, processor.Record, processor.Context, processor.Store, processor.Timer],
    "Asking the REST view from Python": [
        Client, client.Entries, client.Entry, client.Groups, client.Group, client.Change,
    ],
    "Asking shards from Python": [Reader, query.AsOf, query.Answer, query.Entry],
    "Testing": [TopologyTestDriver, Output, kafka.EmbeddedKafka],
}  # fmt: skip
"""What the page describes; everything else may change without notice."""
_HIDDEN = {"add", "claim", "expire", "turn_to"}
_MADE_BY_METHODS = {
    topology.Stream, topology.GroupedStream, topology.WindowedStream, topology.Table, topology.GlobalTable,
    topology.GroupedTable, processor.Processor, processor.Context, processor.Store,
}  # fmt: skip


def page() -> str:
    """The reference, as Markdown."""
    parts = ["# Reference\n\nMade from the docstrings by `make docs`.", _extras()]
    for title, objects in PUBLIC.items():
        parts += [f"## {title}", *(_describe(one) for one in objects)]
    parts += ["## Commands", *_commands(), "## Settings", _after_first_line(settings.__doc__), "## Errors", _errors()]
    return "\n\n".join(parts) + "\n"


def drawings() -> dict[str, str]:
    """File name and content of each drawing."""
    return {"orders.svg": drawing.svg(load_pipeline(HERE.parent / "spark_jobs", "orders")) + "\n"}


def _extras() -> str:
    """What has no docstring of its own: the columns of every record."""
    columns = ", ".join(f"`{name}` ({kind})" for name, kind in METADATA.items())
    return f"In every expression, beside the value's own fields: {columns}."


def _describe(thing: Any) -> str:
    signature = "" if thing in _MADE_BY_METHODS else _signature(thing)
    members = [f"- **`{name}{signature}`**: {text}" for name, signature, text in _members(thing)]
    return "\n\n".join([f"### `{thing.__name__}{signature}`", _text(thing), *(["\n".join(members)] if members else [])])


def _members(kind: Any) -> Iterator[tuple[str, str, str]]:
    """Public methods and properties in the order in which they are written; those of a described base stand there."""
    described = {one for objects in PUBLIC.values() for one in objects} - {kind}
    for base in (one for one in getattr(kind, "__mro__", ()) if one.__module__.startswith("sluice.")):
        for name, member in vars(base).items() if base not in described else ():
            if name.startswith("_") or name in _HIDDEN or not inspect.getdoc(member):
                continue
            if inspect.isfunction(member):
                yield name, _signature(member), _text(member)
            elif isinstance(member, property):
                yield name, "", _text(member)


def _signature(thing: Any) -> str:
    found = inspect.signature(thing)
    shown = [_with_default(one) for one in found.parameters.values() if one.name != "self"]
    keyword_only = next((i for i, one in enumerate(shown) if one[1]), None)
    texts = [text for text, _ in shown]
    if keyword_only is not None and not any(text.startswith("*") for text in texts[:keyword_only]):
        texts.insert(keyword_only, "*")
    returned = found.return_annotation
    is_told = isinstance(returned, str) and returned != "None"
    return f"({', '.join(texts)})" + (f" -> {returned}" if is_told else "")


def _with_default(one: inspect.Parameter) -> tuple[str, bool]:
    """A parameter as its author wrote it, and whether it must be named."""
    star = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
    simple = isinstance(one.default, str | int | None)
    default = "" if one.default is one.empty else f" = {one.default!r}" if simple else " = ..."
    annotation = str(one.annotation).strip('"').replace("'", '"')
    return f"{star}{one.name}: {annotation}{default}", one.kind is one.KEYWORD_ONLY


def _text(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def _after_first_line(text: str | None) -> str:
    return (text or "").partition("\n")[2].strip()


def _commands() -> Iterator[str]:
    command: Any = typer.main.get_command(app)
    for name, one in _leaves(command, "sluice"):
        parameters = [_parameter(parameter) for parameter in one.params if parameter.name != "help"]
        yield "\n\n".join(
            [f"### `{name}`", one.get_short_help_str(200), *(["\n".join(parameters)] if parameters else [])]
        )


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for sub, one in getattr(command, "commands", {}).items():
        yield from _leaves(one, f"{name} {sub}") if hasattr(one, "commands") else [(f"{name} {sub}", one)]


def _parameter(parameter: Any) -> str:
    shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
    default = "" if parameter.default in (None, False, "") or parameter.required else f" Default: {parameter.default}."
    return f"- `{shown}`: {parameter.help or ''}{default}"


def _errors() -> str:
    rows = ["| error | status | title | means |", "| --- | --- | --- | --- |"]
    kinds = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.SluiceError)]
    rows += [f"| `{kind.__name__}` | {kind.status} | {kind.title} | {_text(kind)} |" for kind in kinds]
    return "\n".join(rows)


def main() -> None:
    """Write the page and the drawings."""
    (HERE / "reference.md").write_text(page())
    for name, content in drawings().items():
        (HERE / "images" / name).write_text(content)


if __name__ == "__main__":
    main()
