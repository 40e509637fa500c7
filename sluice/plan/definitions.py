"""Describes stores and operators as text.

Stored state stays valid as long as its definition is the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.values.epochs import field_of_time
from sluice.values.kept_headers import KEEPS_HEADERS
from sluice.values.references import Reference


def upstream_definition(node: nodes.Node) -> str:
    """Return the author's text of the steps before an operator.

    Of contracts, only used fields count.
    """
    steps = [*_ancestors(node)]
    texts = " ".join(step.detail for step in (*steps, node) if step.parents)
    definitions: list[str] = []
    for step in steps:
        if isinstance(step, nodes.Source):
            definitions.append(_source_definition(step, texts))
        # A peek does not affect results, so the author may add and remove it without a rebuild.
        elif not step.is_peek:
            definitions.append(step_definition(step))
    return " > ".join(definitions)


def _source_definition(source: nodes.Source, texts: str) -> str:
    """Return a source's definition, with the fields that the expressions in `texts` read."""
    kind = source.kind.replace("_", " ")
    key = "key of the record"
    if source.key:
        key = f"key {source.key}"
    elif source.key_decode:
        key = "key decoded"
    time = f"event time {source.event_time or 'of the record'} {source.zone}"
    time_field = field_of_time(source.event_time)
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
    """Return whether a word in `texts` is the field's name.

    The result is true even if the word is in a constant text.
    """
    in_backticks = re.escape(field.replace("`", "``"))
    return re.search(rf"(?<!\w){in_backticks}(?!\w)", texts) is not None


def step_definition(node: nodes.Node, pipeline: Graph | None = None) -> str:
    """Return the definition of a step as the author wrote it, with the declared types.

    `pipeline`, which is given only for an operator's step, shows which headers the step keeps.
    """
    texts = [node.title, node.detail, node.declared_types]
    definition = " ".join(map(str.strip, filter(None, texts)))
    if pipeline is not None and any(map(pipeline.keeps_headers, node.header_stores)):
        return f"{definition}{KEEPS_HEADERS}"
    return definition


def functions_of(stateful: Iterable[nodes.Node]) -> tuple[tuple[str, Reference], ...]:
    """Return the author's functions on which these operators' states depend, with unique names."""
    steps: dict[nodes.Node, None] = {}
    for node in stateful:
        steps |= dict.fromkeys([*_ancestors(node), node])
    uses = Counter[str]()
    functions = []
    for step in steps:
        for function in _functions(step):
            name = f"{function.name} ({step.title})"
            uses[name] += 1
            if uses[name] > 1:
                name = f"{name} {uses[name]}"
            functions.append((name, function))
    return tuple(functions)


def _functions(node: nodes.Node) -> Iterator[Reference]:
    different: list[Any] = []
    for function in node.author_functions:
        # Do not use a set: a function may be an instance without a hash, such as a frozen dataclass
        # with a list.
        if function is not None and function not in different:
            different.append(function)
    yield from map(Reference, different)


def _ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    for parent in node.parents:
        yield from _ancestors(parent)
        yield parent
