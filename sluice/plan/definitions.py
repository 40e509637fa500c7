"""Definitions of stores and operators as text. Stored state stays valid as long as its definition is the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from sluice.errors import TopologyError
from sluice.topology import drawing, nodes
from sluice.topology.serdes import shape_of
from sluice.values.epochs import EpochTime
from sluice.values.references import Reference
from sluice.values.sql_types import compact


def upstream_definition(node: nodes.Node) -> str:
    """The steps before an operator as the author wrote them, with only the used fields of each contract."""
    steps = [*_ancestors(node)]
    texts = " ".join(drawing.detail(step) for step in (*steps, node) if not isinstance(step, nodes.Source))
    return " > ".join(
        _source(step, texts) if isinstance(step, nodes.Source) else step_definition(step)
        for step in steps
        if not (isinstance(step, nodes.Apply) and step.gives == "nothing")  # a peek does not affect results
    )


def _source(source: nodes.Source, texts: str) -> str:
    """A source's definition, with the fields that the expressions in `texts` read."""
    kind = source.kind.replace("_", " ")
    key = f"key {source.key or ('decoded' if source.key_decode else 'of the record')}"
    time = f"event time {source.event_time or 'of the record'} {source.zone}"
    time_field = source.event_time.field if isinstance(source.event_time, EpochTime) else source.event_time
    if source.on_time == "clock":
        time += ", or that of processing"
    nulls = ["nulls kept"] if source.nulls == "keep" else []
    used = [
        f"{name} {sql}"
        for name, sql in source.fields.items()
        if name in (source.key, time_field) or re.search(rf"(?<!\w){re.escape(name.replace('`', '``'))}(?!\w)", texts)
    ]
    return ", ".join([f"{kind} {source.topic}", key, time, *nulls, *used])


def step_definition(node: nodes.Node) -> str:
    """The definition of a step as the author wrote it, with the declared types."""
    types = ""
    match node:
        case nodes.Apply(takes=takes, shape=shape):
            types = f"({declared(takes)}) gives {', '.join(f'{name} {sql}' for name, sql in shape.fields.items())}"
        case nodes.Process(takes=takes, stores=stores, queryable=queryable):
            # Stores that can be queried are compared separately.
            kept = {} if queryable else stores
            types = f"({declared(takes)}) {', '.join(f'{name} {declared(kind)}' for name, (kind, _) in kept.items())}"
    return " ".join(text.strip() for text in (drawing.title(node), drawing.detail(node), types) if text)


def declared(kind: Any) -> str:
    """The Spark SQL type of a processor's values, or `variant` if no SQL type corresponds to theirs."""
    try:
        known = "" if kind is Any else shape_of(kind).kind
    except TopologyError:
        known = ""
    return compact(known) or "variant"


def functions_of(stateful: Iterable[nodes.Node]) -> tuple[tuple[str, Reference], ...]:
    """The author's functions on which these operators' states depend, with unique names."""
    steps = dict.fromkeys(step for node in stateful for step in (*_ancestors(node), node))
    counts: dict[str, int] = {}
    functions = []
    for step in steps:
        for function in _functions(step):
            name = f"{function.name} ({drawing.title(step)})"
            counts[name] = counts.get(name, 0) + 1
            functions.append((name if counts[name] == 1 else f"{name} {counts[name]}", function))
    return tuple(functions)


def _functions(node: nodes.Node) -> Iterator[Reference]:
    functions: tuple[Any, ...] = ()
    match node:
        case nodes.Source(serde=serde, key_decode=key_decode):
            functions = (serde.decode, key_decode)
        case nodes.Apply(function=function, gives=gives) if gives != "nothing":
            functions = (function,)
        case nodes.Transform(function=function):
            functions = (function,)
        case nodes.Aggregate(python=nodes.PythonAggregate() as python):
            functions = (python.initializer, python.adder, python.subtractor, python.merger)
        case nodes.Process(processor=processor):
            functions = (processor,)
    yield from (Reference(function) for function in dict.fromkeys(functions) if function is not None)


def _ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    for parent in nodes.parents(node):
        yield from _ancestors(parent)
        yield parent
