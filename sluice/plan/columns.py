"""Every expression of the author as Spark SQL over the job's own columns.

- `s3_amount`: field `amount` of the value decoded by source 3; `_key`, `_topic`, ... as in `expressions.METADATA`;
- `n5`: whether a record passed node 5; `n7_total`: field `total` that node 7 made;
  signs that a column's name cannot have are spelt out: field `order-id` is `s3_order_x2d_id`;
- `k5_0`: the first key by which records that passed node 5 are grouped; `o9_key`, `o9_value`: output of sink 9.

Columns come in layers, each computed from the ones before, so that a step is computed once however many follow it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.topology import nodes
from sluice.topology.expressions import METADATA, parse
from sluice.topology.pipeline import Pipeline


@dataclass
class Draft:
    """A job while it is being put together."""

    pipeline: Pipeline
    layers: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    used: dict[int, dict[str, None]] = field(default_factory=dict)
    metadata: set[str] = field(default_factory=set)
    envs: dict[int, Env] = field(default_factory=dict)
    sources: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Column → the source and the field of its value that it holds."""


@dataclass(frozen=True)
class Env:
    """What is known after a node: how deep its columns are, the condition to get here, and where each field stands."""

    depth: int
    passed: str
    columns: Mapping[str, str]


def env_of(draft: Draft, node: nodes.Node) -> Env:
    """What is known after a stateless step or a source; its columns are made when they are first asked for."""
    if node.number not in draft.envs:
        draft.envs[node.number] = _make_env(draft, node)
    return draft.envs[node.number]


def _make_env(draft: Draft, node: nodes.Node) -> Env:
    match node:
        case nodes.Source():
            columns = {name: column_name(f"s{node.number}", name) for name in node.fields}
            columns |= {name: name for name in METADATA}
            draft.sources |= {columns[name]: (node.number, name) for name in node.fields}
            if node.key is not None:
                columns["_key"] = f"key{node.number}"
                draft.used.setdefault(node.number, {})[node.key] = None
                add(draft, 1, columns["_key"], f"CAST({columns[node.key]} AS STRING)")
            return Env(1, f"(_source <=> {node.number})", columns)
        case nodes.Filter(parent=parent, where=where):
            env = env_of(draft, parent)
            condition = f"coalesce({env.passed} AND ({sql_of(draft, env, where)}), false)"
            add(draft, env.depth + 1, f"n{node.number}", condition)
            return Env(env.depth + 1, f"n{node.number}", env.columns)
        case nodes.MapValues(parent=parent, columns=texts):
            return _map(draft, node, env_of(draft, parent), texts)
        case nodes.SelectKey(parent=parent, key=key):
            env = env_of(draft, parent)
            add(
                draft,
                env.depth + 1,
                f"key{node.number}",
                f"IF({env.passed}, CAST({sql_of(draft, env, key)} AS STRING), NULL)",
            )
            return Env(env.depth + 1, env.passed, {**env.columns, "_key": f"key{node.number}"})
        case _:
            raise AssertionError(f"{node.name} is not a stateless step")


def _map(draft: Draft, node: nodes.Node, env: Env, texts: Mapping[str, str]) -> Env:
    columns = {name: env.columns[name] for name in METADATA}
    for name, text in texts.items():
        sql = sql_of(draft, env, text)
        if sql in env.columns.values():
            columns[name] = sql
        else:
            columns[name] = column_name(f"n{node.number}", name)
            # Guarded: an expression is not evaluated for records that a filter before it took out.
            add(draft, env.depth + 1, columns[name], f"IF({env.passed}, {sql}, NULL)")
    return Env(env.depth + 1, env.passed, columns)


def sql_of(draft: Draft, env: Env, text: str) -> str:
    """`text` over the job's columns; the fields it reads are noted as used."""
    expression = parse(text)
    return expression.on({name: column_read(draft, env, name) for name in expression.fields})


def column_read(draft: Draft, env: Env, name: str) -> str:
    """The column of a field, which is noted as used."""
    column = env.columns[name]
    if column in METADATA:
        draft.metadata.add(column)
    elif column in draft.sources:
        number, of_source = draft.sources[column]
        draft.used.setdefault(number, {})[of_source] = None
    return column


def column_name(prefix: str, field: str) -> str:
    """The job's column for a field, a name that needs no quotes in SQL."""
    return f"{prefix}_{re.sub('[^A-Za-z0-9_]', lambda sign: f'_x{ord(sign[0]):x}_', field)}"


def literal(name: str) -> str:
    """`name` as a literal of Spark SQL."""
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def add(draft: Draft, depth: int, name: str, sql: str) -> None:
    """Make a column in the layer of that depth."""
    draft.layers.setdefault(depth, []).append((name, sql))


def column_of(draft: Draft, depth: int, name: str, sql: str) -> str:
    """The column that holds `sql`, made once however often it is asked for."""
    if sql.isidentifier():
        return sql
    names = draft.layers.setdefault(depth, [])
    made = next((column for column, text in names if text == sql), None)
    if made is None:
        made = f"{name}_{len(names)}"
        names.append((made, sql))
    return made
