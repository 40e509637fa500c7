"""Definitions of stores and operators as text. Stored state stays valid as long as its definition is the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from sluice.errors import TopologyError
from sluice.topology import drawing, nodes
from sluice.topology.serdes import shape_of
from sluice.values.epochs import EpochTime
from sluice.values.references import Reference
from sluice.values.sql_types import compact
from sluice.values.stored_values import models_within
from sluice.values.windows import CustomWindow


def upstream_definition(node: nodes.Node) -> str:
    """The steps before an operator as the author wrote them, with only the used fields of each contract."""
    steps = [*_ancestors(node)]
    details = [
        drawing.detail(step) for step in (*steps, node) if not isinstance(step, nodes.Source)
    ]
    texts = " ".join(details)
    definitions = []
    for step in steps:
        is_peek = isinstance(step, nodes.Apply) and step.gives == "nothing"
        if isinstance(step, nodes.Source):
            definitions.append(_source_definition(step, texts))
        # A peek does not affect results, so the author may add and remove it without a rebuild.
        elif not is_peek:
            definitions.append(step_definition(step))
    return " > ".join(definitions)


def _source_definition(source: nodes.Source, texts: str) -> str:
    """A source's definition, with the fields that the expressions in `texts` read."""
    kind = source.kind.replace("_", " ")
    key = f"key {source.key or ('decoded' if source.key_decode else 'of the record')}"
    time = f"event time {source.event_time or 'of the record'} {source.zone}"
    time_field = (
        source.event_time.field if isinstance(source.event_time, EpochTime) else source.event_time
    )
    if source.on_time == "clock":
        time += ", or that of processing"
    parts = [f"{kind} {source.topic}", key, time]
    if source.nulls == "keep":
        parts.append("nulls kept")
    # Fields that no expression reads may be added and removed without a rebuild.
    for name, sql_type in source.fields.items():
        if name in (*source.key_fields, time_field) or _is_read(name, texts):
            parts.append(f"{name} {sql_type}")
    return ", ".join(parts)


def _is_read(field: str, texts: str) -> bool:
    """Whether a word in `texts` is the field's name. The result is true even if the word is in a constant text."""
    in_backticks = re.escape(field.replace("`", "``"))
    return re.search(rf"(?<!\w){in_backticks}(?!\w)", texts) is not None


def step_definition(node: nodes.Node) -> str:
    """The definition of a step as the author wrote it, with the declared types."""
    types = ""
    match node:
        case nodes.Apply(takes=takes, shape=shape):
            fields = [f"{name} {sql_type}" for name, sql_type in shape.fields.items()]
            types = f"({declared(takes)}) gives {', '.join(fields)}"
        case nodes.Call(takes=takes, shape=shape):
            types = f"({declared(takes)}) gives {compact(shape.kind) or 'variant'}"
        case nodes.Lookup(row=row):
            types = f"gives {compact(row.kind)}"
        case nodes.Process(takes=takes, stores=stores, queryable=queryable):
            # Stores that can be queried have their own definitions, which are compared separately.
            stores = {} if queryable else stores
            store_types = [f"{name} {declared(kind)}" for name, (kind, _) in stores.items()]
            types = f"({declared(takes)}) {', '.join(store_types)}"
    return " ".join(
        text.strip() for text in (drawing.title(node), drawing.detail(node), types) if text
    )


def declared(kind: Any) -> str:
    """The Spark SQL type of a processor's values, or `variant` if no SQL type corresponds to their type."""
    try:
        sql_type = "" if kind is Any else shape_of(kind).kind
    except TopologyError:
        sql_type = ""
    return compact(sql_type) or "variant"


def functions_of(stateful: Iterable[nodes.Node]) -> tuple[tuple[str, Reference], ...]:
    """The author's functions on which these operators' states depend, with unique names."""
    steps: dict[nodes.Node, None] = {}
    for node in stateful:
        steps |= dict.fromkeys([*_ancestors(node), node])
    uses = Counter[str]()
    functions = []
    for step in steps:
        for function in _functions(step):
            name = f"{function.name} ({drawing.title(step)})"
            uses[name] += 1
            functions.append((name if uses[name] == 1 else f"{name} {uses[name]}", function))
    return tuple(functions)


def _functions(node: nodes.Node) -> Iterator[Reference]:
    functions: tuple[Any, ...] = ()
    match node:
        case nodes.Source(serde=serde, key_decode=key_decode):
            # The validators of models decide which values a state gets, so models count as
            # functions.
            functions = (serde.decode, key_decode, *models_within(serde.contract))
        case nodes.Apply(function=function, gives=gives) if gives != "nothing":
            functions = (function,)
        case nodes.Transform(function=function):
            functions = (function,)
        case nodes.Aggregate():
            functions = tuple(_aggregate_functions(node))
        case nodes.Process(processor=processor):
            functions = (processor,)
    different: list[Any] = []
    for function in functions:
        # A function can be an instance that has no hash, such as a frozen dataclass with a list.
        if function is not None and function not in different:
            different.append(function)
    yield from map(Reference, different)


def _aggregate_functions(node: nodes.Aggregate) -> Iterator[Any]:
    if isinstance(node.window, CustomWindow):
        yield node.window.function.value
    if isinstance(node, nodes.Cogroup):
        yield from (part.adder for part in node.parts)
    if node.python is not None:
        yield from (
            node.python.initializer,
            node.python.adder,
            node.python.subtractor,
            node.python.merger,
        )


def _ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    for parent in nodes.parents(node):
        yield from _ancestors(parent)
        yield parent
