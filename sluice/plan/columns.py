"""Every expression of the author as Spark SQL over the job's own columns.

- `s3_amount`: field `amount` of the value decoded by source 3; `_key`, `_topic`, ... as in `values.records.METADATA`;
- `n5`: whether a record passed node 5; `n7_total`: field `total` that node 7 made; `r8`: what function 8 returned;
- `t5_0`: what expressions of node 5 that may fail came to; `t5_0_error`: why they failed;
- `v9`: the value that operator 9 sent on; `x6_pos`, `x6`: place and value of an element that node 6 made a record;
  signs that a column's name cannot have are spelt out: field `order-id` is `s3_order_x2d_id`;
- `k5_0`: the first key by which records that passed node 5 are grouped; `o9_key`, `o9_value`: output of sink 9.

Columns come in stages, one before the first ordered operators and one after each set of them, and in a stage in layers,
each computed from the ones before, so that a step is computed once however many follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sluice.plan.draft import Draft, Env, add, below, column_name, column_read, may_fail_here, tried
from sluice.plan.jobs import TRANSFORM, Transformation
from sluice.topology import nodes
from sluice.topology.expressions import Parts, in_order, parse
from sluice.topology.serdes import is_object
from sluice.values.records import METADATA, TEXT_FIELD
from sluice.values.sql import literal, quoted, typed_json


def env_of(draft: Draft, node: nodes.Node, *, old: bool = False) -> Env:
    """What is known after a step; its columns are made when they are first asked for.

    With `old` a table's rows come with what they replace, which takes an operator that remembers it.
    """
    if (node.number, old) not in draft.envs:
        draft.envs[node.number, old] = _make_env(draft, node, old=old)
    return draft.envs[node.number, old]


def _make_env(draft: Draft, node: nodes.Node, *, old: bool) -> Env:
    if isinstance(node, nodes.ToTable) and not old:
        return env_of(draft, node.parent)
    if node.number in draft.operators:
        return _result_env(draft, node)
    match node:
        case nodes.Source():
            return _source_env(draft, node)
        case nodes.Merge(streams=streams):
            return _merged(draft, node, [env_of(draft, stream) for stream in streams])
        case nodes.Branch(parent=process, output=output, fields=fields):
            env = env_of(draft, process)
            name = f"v{process.number}_{list(process.returns).index(output)}"
            return _typed(env, name, f"({env.passed} AND output = {literal(output)})", fields)
        case _:
            (parent,) = nodes.parents(node)
            return _step_env(draft, node, env_of(draft, parent, old=old))


def _step_env(draft: Draft, node: nodes.Node, env: Env) -> Env:
    match node:
        case nodes.Filter(where=where):
            return _filter(draft, node, env, where)
        case nodes.MapValues(columns=texts):
            return _map(draft, node, env, texts)
        case nodes.MapValue(value=text):
            return replace(_map(draft, node, env, {TEXT_FIELD: text}), scalar=True)
        case nodes.SelectKey(parent=parent, key=key):
            env, sqls = tried(draft, env, node, parent, {"key": key}, key="key")
            return _rekeyed(draft, node, env, f"IF({env.passed}, CAST({sqls['key']} AS STRING), NULL)")
        case nodes.FlatMapValues(parent=parent, items=items, fields=fields):
            env, sqls = tried(draft, env, node, parent, {"items": items})
            return _elements(draft, node, env, sqls["items"], fields)
        case nodes.Apply():
            return _applied(draft, node, env)
        case nodes.Transform():
            return _transformed(draft, node, env)
        case nodes.ToStream():
            return replace(env, passed=f"({env.passed} AND NOT old)") if env.stage else env
        case _:
            raise AssertionError(f"{node.name} is not a stateless step")


def _source_env(draft: Draft, node: nodes.Source) -> Env:
    columns = {name: column_name(f"s{node.number}", name) for name in node.fields}
    draft.sources |= {columns[name]: (node.number, name) for name in node.fields}
    columns |= {name: name for name in METADATA}
    if node.key is not None:
        columns["_key"] = f"key{node.number}"
        draft.used.setdefault(node.number, {})[node.key] = None
        draft.key_fields.setdefault(node.number, set()).add(node.key)
        text = f"CAST({columns[node.key]} AS STRING)"
        if node.nulls == "keep":
            # Where the value is null there is no field to be the key.
            draft.metadata.add("_key")
            text = f"coalesce({text}, _key)"
        add(draft, 0, 1, columns["_key"], text)
    scalar = not is_object(node.serde.contract)
    is_null = "_null" if node.nulls == "keep" else "false"
    return Env(0, 1, f"(_source <=> {node.number})", columns, scalar, is_null)


def _result_env(draft: Draft, node: nodes.Node) -> Env:
    """After an ordered operator: its value is one column, typed by the engine."""
    env = Env(draft.operators[node.number], 0, f"(emitted AND target <=> {node.number})", RESULT_METADATA)
    column = f"v{node.number}"
    number = node.number
    while node.number in draft.inline:
        (node,) = nodes.parents(node)
    if isinstance(node, nodes.Aggregate) and node.python is None and (made := made_of(node)):
        columns = {name: parse(text).on({a: f"{column}.{a}" for a in parse(text).fields}) for name, text in made}
        if node.scalar:
            columns = {TEXT_FIELD: next(iter(columns.values()))}
        is_null = "(value IS NULL)"
        return replace(env, columns=columns | RESULT_METADATA, scalar=node.scalar, is_null=is_null)
    return replace(_typed(env, column, env.passed, result_fields(draft, node)), is_null="(value IS NULL)", raw=number)


def made_of(node: nodes.Aggregate) -> tuple[tuple[str, str], ...]:
    """An ordered aggregate's columns over the results `a0`, `a1`, ... of its functions; none if each is just one."""
    parts = {name: in_order(text) for name, text in node.columns.items()}
    functions: dict[tuple[str, str | None, int], None] = {}
    columns = []
    for name, one in parts.items():
        assert isinstance(one, Parts)
        functions |= dict.fromkeys(one.functions)
        places = {f"a{i}": f"a{list(functions).index(function)}" for i, function in enumerate(one.functions)}
        columns.append((name, parse(one.text).on(places)))
    plain = [text for _, text in columns] == [f"a{i}" for i in range(len(functions))]
    return () if plain else tuple(columns)


def _typed(env: Env, column: str, passed: str, fields: Mapping[str, str]) -> Env:
    scalar = list(fields) == [TEXT_FIELD]
    columns = {TEXT_FIELD: column} if scalar else {name: f"{column}.{quoted(name)}" for name in fields}
    return replace(
        env, passed=passed, columns=columns | RESULT_METADATA, scalar=scalar, is_null=f"({column} IS NULL)", raw=None
    )


def result_fields(draft: Draft, node: nodes.Node) -> Mapping[str, str]:
    """The fields of an ordered operator's results."""
    match node:
        case nodes.Aggregate(python=python) if python is not None:
            return python.fields
        case nodes.Aggregate(columns=columns, scalar=scalar):
            return {TEXT_FIELD: ""} if scalar else columns
        case nodes.Join():
            return {"left": "", "right": ""}
        case nodes.Process():
            return {TEXT_FIELD: ""}
        case _:
            env = env_of(draft, nodes.parents(node)[0])
            return {TEXT_FIELD: ""} if env.scalar else dict.fromkeys(env.fields, "")


_PLACE_BITS = 40
RESULT_METADATA = {
    "_key": "key",
    "_timestamp": "timestamp_millis(time)",
    "_partition": f"CAST((place >> {_PLACE_BITS}) & 8191 AS INT)",
    "_offset": f"(place & {2**_PLACE_BITS - 1})",
    "_window_start": "timestamp_millis(nullif(window_start, -1))",
    "_window_end": "timestamp_millis(nullif(window_end, -1))",
}
"""What is known of the record that an operator's result came from."""


def _filter(draft: Draft, node: nodes.Filter, env: Env, where: str) -> Env:
    env, sqls = tried(draft, env, node, node.parent, {"where": where})
    condition, name = sqls["where"], f"n{node.number}"
    if nodes.is_table(node):
        # A row that no longer passes is deleted from the table that is left.
        add(draft, env.stage, env.depth + 1, name, f"({env.is_null} OR NOT coalesce({condition}, false))")
        return replace(env, depth=env.depth + 1, is_null=name)
    add(draft, env.stage, env.depth + 1, name, f"coalesce({env.passed} AND ({condition}), false)")
    return replace(env, depth=env.depth + 1, passed=name)


def _rekeyed(draft: Draft, node: nodes.Node, env: Env, sql: str) -> Env:
    add(draft, env.stage, env.depth + 1, f"key{node.number}", sql)
    return replace(env, depth=env.depth + 1, columns={**env.columns, "_key": f"key{node.number}"})


def _map(draft: Draft, node: nodes.MapValues | nodes.MapValue, env: Env, texts: Mapping[str, str]) -> Env:
    columns = {name: sql for name, sql in env.columns.items() if name not in env.fields}
    env, sqls = tried(draft, env, node, node.parent, texts)
    for name, sql in sqls.items():
        if sql in env.columns.values():
            columns[name] = sql
        else:
            columns[name] = column_name(f"n{node.number}", name)
            # Guarded: an expression is not evaluated for records that a filter before it took out.
            add(draft, env.stage, env.depth + 1, columns[name], f"IF({env.passed}, {sql}, NULL)")
    # A stream's record gets a value; a table's deletion stays one.
    is_null = env.is_null if nodes.is_table(node) else "false"
    return replace(env, depth=env.depth + 1, columns=columns, scalar=False, is_null=is_null, raw=None)


def _elements(draft: Draft, node: nodes.Node, env: Env, items: str, fields: Mapping[str, str]) -> Env:
    """A record for each element of an array: the others of the stage count where `pos` is 0 or null."""
    name, depth = f"x{node.number}", below(draft, env.stage)
    add(draft, env.stage, depth, f"{name}_pos, {name}", f"posexplode_outer(IF({env.passed}, {items}, NULL))")
    draft.explosions.setdefault(env.stage, []).append(node.number)
    draft.explosion_depths[node.number] = depth
    draft.metadata.add("_offset")
    made = {field: f"{name}.{quoted(field)}" for field in fields} if fields else {TEXT_FIELD: name}
    columns = {field: sql for field, sql in env.columns.items() if field not in env.fields} | made
    return replace(
        env, depth=depth, passed=f"({name}_pos IS NOT NULL)", columns=columns, scalar=not fields, is_null="false",
        raw=None, exploded=(*env.exploded, node.number),
    )  # fmt: skip


def _merged(draft: Draft, node: nodes.Node, envs: list[Env]) -> Env:
    """Each record once for every stream it comes by."""
    first = envs[0]
    depth = max(env.depth for env in envs) + 1
    ways = ", ".join(f"IF({env.passed}, {number}, NULL)" for number, env in enumerate(envs))
    add(draft, first.stage, depth, f"m{node.number}_ways", f"filter(array({ways}), way -> way IS NOT NULL)")
    way = replace(first, depth=depth, passed="true", exploded=())
    found = _elements(draft, node, way, f"m{node.number}_ways", {})
    name = f"x{node.number}"

    def chosen(pick: Mapping[int, str]) -> str:
        cases = " ".join(f"WHEN {number} THEN {sql}" for number, sql in pick.items())
        return f"CASE {name} {cases} END"

    columns = {}
    for field_name in first.columns:
        sqls = {number: env.columns[field_name] for number, env in enumerate(envs) if field_name in env.columns}
        if len(set(sqls.values())) == 1:
            columns[field_name] = first.columns[field_name]
            continue
        for env in envs:
            column_read(draft, env, field_name)
        columns[field_name] = column_name(f"n{node.number}", field_name)
        add(draft, first.stage, found.depth + 1, columns[field_name], chosen(sqls))
    add(draft, first.stage, found.depth + 1, f"n{node.number}_null", f"coalesce({chosen(_nulls(envs))}, false)")
    exploded = tuple(dict.fromkeys([*(one for env in envs for one in env.exploded), node.number]))
    return replace(
        found, depth=found.depth + 1, columns=columns, scalar=first.scalar, is_null=f"n{node.number}_null",
        exploded=exploded,
    )  # fmt: skip


def _nulls(envs: list[Env]) -> dict[int, str]:
    return {number: env.is_null for number, env in enumerate(envs)}


def _applied(draft: Draft, node: nodes.Apply, env: Env) -> Env:
    """A Python function as a function of SQL: it takes key and value as JSON, and gives JSON or what was wrong."""
    draft.functions[node.number] = node
    key = column_read(draft, env, "_key")
    name = f"r{node.number}"
    may_fail_here(draft, env, node, f"{name}.error")
    others = {
        draft.explosion_depths[one]: one for one in draft.explosions.get(env.stage, ()) if one not in env.exploded
    }
    depth = env.depth + 1
    while depth in others:  # Spark would call it there for every record that is made of this one
        depth += 1
    once = [env.passed, *(f"coalesce(x{one}_pos, 0) = 0" for layer, one in others.items() if layer < depth)]
    passed = f"({' AND '.join(once)})" if len(once) > 1 else env.passed
    call = f"python_{node.number}({passed}, {key}, {env.json(draft, passed)})"
    add(draft, env.stage, depth, name, call)
    after = replace(env, depth=depth, passed=f"({env.passed} AND {name}.error IS NULL)")
    match node.gives:
        case "nothing":
            return after
        case "condition":
            return replace(after, passed=f"coalesce({after.passed} AND {name}.value = 'true', false)")
        case "key":
            return _rekeyed(draft, node, after, f"{name}.key")
        case "values" | "records":
            return _results(draft, node, _elements(draft, node, after, f"{name}.items", {}), f"x{node.number}")
        case _:
            return _results(draft, node, after, name)


def _transformed(draft: Draft, node: nodes.Transform, env: Env) -> Env:
    """A function of the whole frame, in a layer of its own: what it is given, and what it makes."""
    depth = below(draft, env.stage)
    given = tuple((name, f"IF({env.passed}, {column_read(draft, env, name)}, NULL)") for name in env.fields)
    made = {name: column_name(f"n{node.number}", name) for name in node.fields}
    draft.transforms[node.number] = Transformation(node.function, node.at, given, tuple(made.items()))
    add(draft, env.stage, depth, TRANSFORM, str(node.number))
    kept = {name: sql for name, sql in env.columns.items() if name not in env.fields}
    scalar = list(node.fields) == [TEXT_FIELD]
    return replace(env, depth=depth, columns=kept | made, scalar=scalar, is_null="false", raw=None)


def _results(draft: Draft, node: nodes.Apply, env: Env, result: str) -> Env:
    """The value that a function gave; and the key, where it gives both."""
    column = f"v{node.number}"
    add(draft, env.stage, env.depth + 1, column, typed_json(f"{result}.value", node.fields))
    typed = _typed(replace(env, depth=env.depth + 1), column, env.passed, node.fields)
    kept = {name: sql for name, sql in env.columns.items() if name in METADATA or name.startswith("_window_")}
    columns = {name: sql for name, sql in typed.columns.items() if name in typed.fields} | kept
    if node.gives in ("record", "records"):
        columns["_key"] = f"{result}.key"
    return replace(typed, columns=columns)
