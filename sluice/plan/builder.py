"""Mutable state of planning a job: the columns so far, and the scope after each node."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.plan.jobs import Column, Failure, FallibleExpression, Transformation
from sluice.plan.steps import PythonFunction, Step
from sluice.plan.value_types import types_after
from sluice.sql.expressions import parse
from sluice.sql.fallible import causes, may_fail, validated
from sluice.sql.types import Types
from sluice.topology import nodes
from sluice.topology.pipeline import Pipeline
from sluice.values import row_order
from sluice.values.record_metadata import CHANGE_METADATA, METADATA, RESERVED_NAMES, TEXT_FIELD
from sluice.values.sql_text import literal, struct_json, value_json

Layers = dict[int, list[Column | FallibleExpression] | Transformation]
"""Depth → the layer at that depth."""


@dataclass
class PlanBuilder:
    """The state of planning one job."""

    pipeline: Pipeline
    steps: tuple[Step, ...]
    stages: dict[int, Layers] = field(default_factory=dict)
    used: dict[int, dict[str, None]] = field(default_factory=dict)
    key_fields: dict[int, dict[str, None]] = field(default_factory=dict)
    """Source → the fields whose texts are keys."""
    metadata: set[str] = field(default_factory=set)
    scopes: dict[tuple[int, bool], Scope] = field(default_factory=dict)
    sources: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Column → its source and field."""
    results: dict[str, str] = field(default_factory=dict)
    """SQL of a field of an operator's results → the column of the results."""
    results_read: set[str] = field(default_factory=set)
    """The columns of operators' results that expressions read."""
    functions: list[PythonFunction] = field(default_factory=list)
    attempts: list[FallibleExpression] = field(default_factory=list)
    failing: list[tuple[Failure, Scope]] = field(default_factory=list)
    """Steps that can fail, each with the scope before it."""
    explosions: dict[int, list[int]] = field(default_factory=dict)
    """Stage → its nodes that turn one record into several."""
    explosion_depths: dict[int, int] = field(default_factory=dict)
    """Node that turns one record into several → its layer."""
    operators: dict[int, int] = field(default_factory=dict)
    """Number of an operator → its stage."""
    inline: set[int] = field(default_factory=set)
    """Operators that get another operator's results directly, in the same stage."""
    late: set[nodes.Late] = field(default_factory=set)
    """The topics of late records that a group or an operator already writes."""


@dataclass(frozen=True)
class Scope:
    """The columns after a node: stage, layer, the condition for a record to reach this point, and fields' columns."""

    stage: int
    depth: int
    passed: str
    columns: Mapping[str, str]
    scalar: bool = False
    is_null: str = "false"
    """Condition: the value is null, or the table's row was removed. All fields are then null (`without_removed`)."""
    results_of: frozenset[int] = frozenset()
    """The operators whose results these are."""
    exploded: tuple[int, ...] = ()
    """Upstream nodes that turn one record into several."""
    raw: str | None = None
    """The column of an operator's results, if the value is an unchanged result (JSON in `value`)."""
    path: tuple[str, ...] = ()
    """SQL of the elements of the path (`values.row_order`) from the stage's record or result to this scope."""
    rekeyed: bool = False
    """Whether a step since the start of the stage has changed the key."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the value's fields."""
        return tuple(name for name in self.columns if name not in RESERVED_NAMES)

    def value(self, builder: PlanBuilder) -> str:
        """SQL of the value: a struct of its fields, or the scalar itself. Marks the fields as used."""
        if self.scalar:
            return column_read(builder, self, TEXT_FIELD)
        pairs = ", ".join(f"{literal(name)}, {column_read(builder, self, name)}" for name in self.fields)
        return f"named_struct({pairs})"

    def json(self, builder: PlanBuilder, condition: str = "true") -> str:
        """SQL of the value as JSON; null if the condition is false or the value is null."""
        text = "value" if self.raw is not None else (value_json if self.scalar else struct_json)(self.value(builder))
        is_null = null_read(builder, self)
        conditions = [
            *([] if condition == "true" else [condition]),
            *([] if is_null == "false" else [f"NOT {is_null}"]),
        ]
        return f"IF({' AND '.join(conditions)}, {text}, NULL)" if conditions else text


def without_removed(builder: PlanBuilder, scope: Scope) -> Scope:
    """The scope in which the fields of a removed row are null, so that no later step reads what the row had.

    In Kafka Streams, a deleted row and a row that a table's filter removes are the same: a record with a null value.
    """
    columns = dict(scope.columns)
    for name in scope.fields:
        column = scope.columns[name]
        columns[name] = f"IF({null_read(builder, scope)}, NULL, {column})"
        if column in builder.sources:
            builder.sources[columns[name]] = builder.sources[column]
        if column in builder.results:
            builder.results[columns[name]] = builder.results[column]
    return replace(scope, columns=columns)


def computed(builder: PlanBuilder, scope: Scope, before: nodes.Node) -> str:
    """The condition under which a step computes its expressions over the node `before`.

    Kafka Streams calls a stream's functions with null values, but a table's only with the rows that it has.
    """
    if not nodes.is_table(before) or scope.is_null == "false":
        return scope.passed
    return f"({scope.passed} AND NOT {null_read(builder, scope)})"


def turned(builder: PlanBuilder, scope: Scope, parent: nodes.Node, child: nodes.Node, side: int = 0) -> Scope:
    """The scope of a node's output as input number `side` of a child."""
    turns = [
        (node.number, number)
        for node in builder.pipeline.whole.nodes
        for number, each in enumerate(nodes.parents(node))
        if each is parent
    ]
    if len(turns) <= 1:
        return scope
    return replace(scope, path=(*scope.path, row_order.turn(turns.index((child.number, side)))))


def masked(builder: PlanBuilder, scope: Scope) -> str:
    """The condition for a consumer to take a row.

    If nodes that are not upstream of the consumer turned a record into several rows, only one of the rows meets the
    condition.
    """
    others = [number for number in builder.explosions.get(scope.stage, []) if number not in scope.exploded]
    conditions = [scope.passed, *(f"coalesce(x{number}_pos, 0) = 0" for number in others)]
    return " AND ".join(conditions)


def sql_of(builder: PlanBuilder, scope: Scope, text: str) -> str:
    """`text` as an expression over the job's columns. Marks the fields that it reads as used."""
    expression = parse(text)
    return expression.on({name: column_read(builder, scope, name) for name in expression.fields})


def tried(
    builder: PlanBuilder, scope: Scope, node: nodes.Node, before: nodes.Node, texts: Mapping[str, str], *, key: str = ""
) -> tuple[Scope, dict[str, str]]:
    """SQL of a step's expressions, and the scope after the step, which passes records for which no expression failed.

    The expressions read the fields of the node `before`; `key` is the name of the expression that becomes a key. The
    SQL of this expression is for the key's text.
    """
    types = types_after(before) | METADATA | CHANGE_METADATA
    return tried_with(builder, scope, node, types, texts, computed(builder, scope, before), key=key)


def tried_with(
    builder: PlanBuilder,
    scope: Scope,
    node: nodes.Node,
    types: Types,
    texts: Mapping[str, str],
    condition: str,
    *,
    key: str = "",
    reported: bool = True,
) -> tuple[Scope, dict[str, str]]:
    """Like `tried`, for expressions over fields of these types, computed under a condition (see `computed`).

    Failures without a report are left out silently.
    """
    texts = {name: validated(text, types) for name, text in texts.items()}
    read_key = _read_key(builder, scope, texts[key]) if key in texts else None
    sqls = {
        name: read_key if name == key and read_key is not None else sql_of(builder, scope, text)
        for name, text in texts.items()
    }
    risky = [name for name, text in texts.items() if (read_key is None if name == key else may_fail(text, types))]
    if not risky:
        return scope, sqls
    attempt = FallibleExpression(
        _next_attempt(builder, node),
        node.number,
        condition,
        tuple(sqls[name] for name in risky),
        risky.index(key) if key in risky else None,
        tuple((sql_of(builder, scope, part), why) for name in risky for part, why in causes(texts[name])),
    )
    after, attempt = attempted(builder, scope, node, attempt, failing=scope if reported else None)
    results = {name: attempt.key_text if name == key else attempt.result(number) for number, name in enumerate(risky)}
    return after, sqls | results


def checked(builder: PlanBuilder, scope: Scope, node: nodes.Node, columns: Sequence[str], failing: Scope) -> Scope:
    """The scope of the records for which a step's result in these columns can be written as JSON.

    `failing` is the scope before the step, of which a dead letter has the value.
    """
    attempt = FallibleExpression(_next_attempt(builder, node), node.number, scope.passed, tuple(columns), None, ())
    return attempted(builder, scope, node, attempt, failing=failing)[0]


def _next_attempt(builder: PlanBuilder, node: nodes.Node) -> str:
    return f"t{node.number}_{sum(attempt.step == node.number for attempt in builder.attempts)}"


def attempted(
    builder: PlanBuilder, scope: Scope, node: nodes.Node, attempt: FallibleExpression, *, failing: Scope | None
) -> tuple[Scope, FallibleExpression]:
    """The scope after an attempt, and the same attempt if the node already has one. Failures are reported `failing`."""
    made = [other for other in builder.attempts if other.step == node.number]
    same = next((other for other in made if replace(attempt, name=other.name) == other), None)
    if same is None:
        builder.attempts.append(attempt)
        add(builder, scope.stage, scope.depth + 1, attempt)
        if failing is not None:
            may_fail_here(builder, failing, node, attempt.error)
    attempt = same or attempt
    return replace(scope, depth=scope.depth + 1, passed=f"({scope.passed} AND {attempt.error} IS NULL)"), attempt


def may_fail_here(builder: PlanBuilder, scope: Scope, node: nodes.Node, error: str) -> None:
    """Register that a step can fail; `error` is the SQL of the error message."""
    if not isinstance(node, nodes.Aggregate) and any(
        failure.step.number == node.number and failure.stage != scope.stage for failure, _ in builder.failing
    ):
        return  # a topic's table is mapped both before and after its store, and the same records fail in both
    if not scope.stage:
        builder.metadata |= {"_topic", "_partition", "_offset", "_timestamp"}
    key, value = ("", "") if not scope.stage else (column_read(builder, scope, "_key"), scope.json(builder))
    column = f"error_{error.replace('.', '_')}"
    builder.failing.append((Failure(builder.steps[node.number], column, scope.stage, error, "", key, value), scope))


def failures(builder: PlanBuilder) -> tuple[Failure, ...]:
    """The places where steps can fail. A record that a step turned into several rows fails only once."""
    return tuple(replace(failure, once=_once(builder, failure, scope)) for failure, scope in builder.failing)


def _once(builder: PlanBuilder, failure: Failure, scope: Scope) -> str:
    others = [number for number in builder.explosions.get(scope.stage, []) if number not in scope.exploded]
    # A table's old value already failed when it was the new value.
    conditions = [*(["NOT old"] if scope.stage else []), *(f"coalesce(x{number}_pos, 0) = 0" for number in others)]
    return " AND ".join([f"{failure.error} IS NOT NULL", *conditions])


def _read_key(builder: PlanBuilder, scope: Scope, key: str) -> str | None:
    """The column of the key's text, if the key is unchanged, or is a source's field, whose text the decoder makes.

    Marks the column as used. The text of any other key must be computed.
    """
    (name, start, stop), *more = parse(key).names or (("", 0, 0),)
    if more or start != 0 or stop != len(key):
        return None
    if scope.columns[name] in builder.sources:
        number, of_source = builder.sources[scope.columns[name]]
        builder.key_fields.setdefault(number, {})[of_source] = None
        source = builder.pipeline.whole.nodes[number]
        assert isinstance(source, nodes.Source)
        return key_column(source, of_source)
    return column_read(builder, scope, name) if name == "_key" else None


def column_read(builder: PlanBuilder, scope: Scope, name: str) -> str:
    """The column of a field. Marks the field as used."""
    column = scope.columns[name]
    if column in METADATA:
        builder.metadata.add(column)
    elif column in builder.sources:
        number, of_source = builder.sources[column]
        builder.used.setdefault(number, {})[of_source] = None
    elif column in builder.results:
        builder.results_read.add(builder.results[column])
    return column


def null_read(builder: PlanBuilder, scope: Scope) -> str:
    """The condition that the value is null. Marks the results that the condition reads as used."""
    if scope.is_null in builder.results:
        builder.results_read.add(builder.results[scope.is_null])
    return scope.is_null


def column_name(prefix: str, field: str) -> str:
    """The name of the job's column for a field, which needs no quotes in SQL."""
    # An underscore that looks like the start of an escape is escaped, too, so that two fields never share a column.
    return f"{prefix}_{re.sub('[^A-Za-z0-9_]|_(?=x[0-9a-f]+_)', lambda sign: f'_x{ord(sign[0]):x}_', field)}"


def key_column(source: nodes.Source, field: str) -> str:
    """The name of the job's column for the text of a source's field as a key. It is the field's own if that is text."""
    return column_name(f"{'s' if source.fields[field] == 'STRING' else 'sk'}{source.number}", field)


def add(builder: PlanBuilder, stage: int, depth: int, column: Column | FallibleExpression) -> None:
    """Add a column to the layer at `depth`."""
    layer = builder.stages.setdefault(stage, {}).setdefault(depth, [])
    assert isinstance(layer, list)
    layer.append(column)


_FINAL = 1_000_000
"""Depth of the last layer, whose columns can read every other column."""


def below(builder: PlanBuilder, stage: int) -> int:
    """The depth of a new last layer, for a step that turns one row into several: a layer can have only one of them."""
    return max((depth for depth in builder.stages.get(stage, {}) if depth != _FINAL), default=0) + 1


def final(builder: PlanBuilder, name: str, sql: str, step: int) -> None:
    """Add a column to the last layer."""
    add(builder, 0, _FINAL, Column(name, sql, step))


def column_of(builder: PlanBuilder, scope: Scope, name: str, sql: str, step: int) -> str:
    """The column of the last layer that computes `sql`. Adds it on first use."""
    if sql.isidentifier() and sql != "false":
        return sql
    layer = builder.stages.setdefault(scope.stage, {}).setdefault(_FINAL, [])
    assert isinstance(layer, list)
    same = next((column for column in layer if isinstance(column, Column) and column.sql == sql), None)
    if same is None:
        same = Column(f"{name}_{len(layer)}", sql, step)
        layer.append(same)
    return same.name
