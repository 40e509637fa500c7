"""Collect a job's columns during planning: columns that stages compute and that expressions read.

Names of columns:

- `s3_amount`: field `amount` of the value decoded by source 3; `_key`, `_topic`, ... as in
  `values.record_metadata.METADATA`;
- `sk3_amount`: the text of this field as a key, unless the field is text; `key3`: source 3's key,
  if the key is taken from a field of the value;
- `n5`: whether a record passed node 5; `n7_total`: field `total` of node 7; `r8`: the result of
  function 8;
- `t5_0`: results of node 5's expressions that can fail; `t5_0_error`: their error;
- `v9`: the value that operator 9 emitted; `x6_pos`, `x6`: index and value of an array element in
  node 6;
- `k5_0`: the first key by which records that passed node 5 are grouped; `o9_key`, `o9_value`:
  output of sink 9.

Characters that a column name cannot contain are escaped: field `order-id` is `s3_order_x2d_id`.

Columns belong to stages: a stage before the first operators, and a stage after each set of
operators. A stage has layers, each computed from the previous layers. A step is therefore computed
only once, even if several steps follow it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.plan.layers import Column, Failure, FallibleExpression, Layer, Layers, Transformation
from sluice.plan.scope import Scope
from sluice.plan.steps import PythonFunction, Step
from sluice.sql.fallible import failure_causes, may_fail, with_utf8_checks
from sluice.sql.parsed_expression import parse
from sluice.sql.types import Types
from sluice.topology import nodes
from sluice.topology.graph import Graph
from sluice.values.record_metadata import CHANGE_METADATA, MAPPED_KEY, METADATA, TEXT_FIELD
from sluice.values.sql_text import all_of, named_struct, struct_json, value_if, value_json

_LAST = 1_000_000
"""Depth of the last layer, whose columns can read every other column."""


@dataclass
class JobColumns:
    """Collects the columns of a job.

    Its methods that return SQL record which columns the SQL reads.
    """

    pipeline: Graph
    steps: tuple[Step, ...]
    functions: list[PythonFunction] = field(default_factory=list)
    """The Python functions that columns call."""
    fields_read: dict[int, dict[str, None]] = field(default_factory=dict)
    """Source → the fields that expressions read."""
    key_fields_read: dict[int, dict[str, None]] = field(default_factory=dict)
    """Source → the fields whose texts are keys."""
    metadata_read: set[str] = field(default_factory=set)
    results_read: set[str] = field(default_factory=set)
    """The columns of operators' results that expressions read."""
    _layers: dict[int, dict[int, list[Column | FallibleExpression] | Transformation]] = field(
        default_factory=dict
    )
    """Stage → depth → the layer."""
    _field_of: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Column → the source's number and the field's name, for columns with the values of fields."""
    _result_of: dict[str, str] = field(default_factory=dict)
    """SQL that reads a field of an operator's result → the column with the result."""
    _fallible: list[FallibleExpression] = field(default_factory=list)
    _failures: list[tuple[Failure, Scope]] = field(default_factory=list)
    """Steps that can fail, each with the scope before it."""
    _explosions: dict[int, dict[int, int]] = field(default_factory=dict)
    """Stage → number of a node that turns one record into several rows → the depth of the node's
    layer."""

    # -- Columns that are computed

    def add(self, stage: int, depth: int, column: Column | FallibleExpression) -> None:
        """Add a column to the layer at `depth`."""
        self._layer(stage, depth).append(column)

    def add_transformation(self, stage: int, depth: int, transformation: Transformation) -> None:
        """Add a function of the whole DataFrame as a separate layer."""
        self._layers.setdefault(stage, {})[depth] = transformation

    def add_explosion(self, stage: int, depth: int, name: str, sql: str, node: nodes.Node) -> None:
        """Add a column that turns a record into a row for each array element, with its position."""
        column = Column(name, f"posexplode_outer({sql})", node.number, position=f"{name}_pos")
        self.add(stage, depth, column)
        self._explosions.setdefault(stage, {})[node.number] = depth
        # A record's rows count as one record. The offset shows which rows come from the same
        # record.
        self.metadata_read.add("_offset")

    def next_layer(self, stage: int) -> int:
        """Return the depth of a new layer after all layers so far.

        Steps that turn a row into several rows, and functions of the whole DataFrame, need such a
        layer.
        """
        depths = self._layers.get(stage, {}).keys() - {_LAST}
        return max(depths, default=0) + 1

    def add_output_column(self, name: str, sql: str, step: int) -> None:
        """Add a column to the last layer of the stage before the operators."""
        self.add(0, _LAST, Column(name, sql, step))

    def output_column(self, scope: Scope, name: str, sql: str, step: int) -> str:
        """Return the column of the stage's last layer that computes `sql`. Adds it on first use."""
        # `sql` is already the name of a column.
        if sql.isidentifier() and sql != "false":
            return sql
        layer = self._layer(scope.stage, _LAST)
        for column in layer:
            if isinstance(column, Column) and column.sql == sql:
                return column.name
        added = Column(f"{name}_{len(layer)}", sql, step)
        layer.append(added)
        return added.name

    def layers_of(self, stage: int) -> Layers:
        """Return the layers of a stage, in order."""
        layers: list[Layer] = []
        for _, layer in sorted(self._layers.get(stage, {}).items()):
            if isinstance(layer, Transformation):
                layers.append(layer)
            else:
                layers.append(tuple(layer))
        return tuple(layers)

    def layers_after_operators(self) -> dict[int, Layers]:
        """Return, for each stage, the layers computed from the results of its operators."""
        layers: dict[int, Layers] = {}
        for stage in self._layers:
            if stage:
                layers[stage] = self.layers_of(stage)
        return layers

    def _layer(self, stage: int, depth: int) -> list[Column | FallibleExpression]:
        layer = self._layers.setdefault(stage, {}).setdefault(depth, [])
        assert isinstance(layer, list)
        return layer

    # -- Columns that are read

    def register_source(self, source: nodes.Source) -> dict[str, str]:
        """Return the column of each field of a source's values."""
        columns: dict[str, str] = {}
        for name in source.fields:
            columns[name] = column = column_name(f"s{source.number}", name)
            self._field_of[column] = source.number, name
        return columns

    def register_results(self, scope: Scope, column: str) -> Scope:
        """Register a scope's fields as parts of an operator's results in `column`.

        Return the scope.
        """
        for name in scope.fields:
            self._result_of[scope.columns[name]] = column
        if scope.is_null != "false":
            self._result_of[scope.is_null] = column
        return scope

    def read(self, scope: Scope, name: str) -> str:
        """Return the column of a field."""
        # Record that the column is read: sources decode only fields that are read, and operators
        # parse only results that are read.
        column = scope.columns[name]
        if column in METADATA:
            self.metadata_read.add(column)
        elif column in self._field_of:
            source, field_name = self._field_of[column]
            self.fields_read.setdefault(source, {})[field_name] = None
        elif column in self._result_of:
            self.results_read.add(self._result_of[column])
        return column

    def _read_all(self, scope: Scope, names: Iterable[str]) -> dict[str, str]:
        """Return the column of each field."""
        columns: dict[str, str] = {}
        for name in names:
            columns[name] = self.read(scope, name)
        return columns

    def read_null(self, scope: Scope) -> str:
        """Return the condition that the value is null."""
        if scope.is_null in self._result_of:
            self.results_read.add(self._result_of[scope.is_null])
        return scope.is_null

    def value(self, scope: Scope) -> str:
        """Return SQL of the value: a struct of its fields, or the scalar itself."""
        if scope.scalar:
            return self.read(scope, TEXT_FIELD)
        return named_struct(self._read_all(scope, scope.fields))

    def json(self, scope: Scope, condition: str = "true") -> str:
        """Return SQL of the value as JSON; null if the condition is false or the value is null."""
        if scope.unchanged_result is not None:
            text = "value"
        elif scope.scalar:
            text = value_json(self.value(scope))
        else:
            text = struct_json(self.value(scope))
        is_null = self.read_null(scope)
        conditions: list[str] = []
        if condition != "true":
            conditions.append(condition)
        if is_null != "false":
            conditions.append(f"NOT {is_null}")
        if conditions:
            return value_if(all_of(conditions), text)
        return text

    def sql(self, scope: Scope, text: str) -> str:
        """Return the author's expression, over the job's columns."""
        expression = parse(text)
        return expression.on(self._read_all(scope, expression.fields))

    def null_removed_rows(self, scope: Scope) -> Scope:
        """Return the scope in which the fields of a removed row are null.

        No later step then reads the row's former fields. In Kafka Streams, a deleted row and a row
        that a table's filter removes are the same: a record with a null value.
        """
        columns = dict(scope.columns)
        for name in scope.fields:
            column = scope.columns[name]
            nulled = f"IF({self.read_null(scope)}, NULL, {column})"
            if column in self._field_of:
                self._field_of[nulled] = self._field_of[column]
            if column in self._result_of:
                self._result_of[nulled] = self._result_of[column]
            columns[name] = nulled
        return replace(scope, columns=columns)

    # -- Conditions

    def evaluation_condition(self, scope: Scope, before: nodes.Node) -> str:
        """Return the condition under which a step computes its expressions over fields of `before`.

        As in Kafka Streams, steps of a stream also process records with a null value, and steps of
        a table process only rows that exist.
        """
        if not before.is_table or scope.is_null == "false":
            return scope.passed
        return f"({scope.passed} AND NOT {self.read_null(scope)})"

    def row_condition(self, scope: Scope) -> str:
        """Return the condition for a consumer to take a row.

        If nodes that are not upstream of the consumer turned a record into several rows, only the
        first of the rows meets the condition.
        """
        return all_of([scope.passed, *self._first_row_conditions(scope)])

    def call_depth(self, scope: Scope) -> tuple[int, str]:
        """Return the layer and the condition of a Python function's calls for a scope's records.

        Nodes that are not upstream of the function may have turned a record into several rows. The
        function is then called only for the first row. It is not called in the layer in which such
        a node makes rows, because Spark would call it for each row there.
        """
        explosions = self._explosions.get(scope.stage, {})
        others = self._other_explosions(scope)
        depths_of_others = {explosions[number] for number in others}
        depth = scope.depth + 1
        while depth in depths_of_others:
            depth += 1
        conditions: list[str] = []
        for number in others:
            if explosions[number] < depth:
                conditions.append(_is_first_row(number))
        if not conditions:
            return depth, scope.passed
        return depth, f"({all_of([scope.passed, *conditions])})"

    def _first_row_conditions(self, scope: Scope) -> list[str]:
        return [*map(_is_first_row, self._other_explosions(scope))]

    def _other_explosions(self, scope: Scope) -> list[int]:
        """Return the numbers of nodes that split records in the scope's stage, but not upstream."""
        explosions = self._explosions.get(scope.stage, {})
        return [number for number in explosions if number not in scope.exploded]

    # -- Expressions that can fail

    def guard(
        self,
        scope: Scope,
        node: nodes.Node,
        before: nodes.Node,
        texts: Mapping[str, str],
        *,
        key: str = "",
    ) -> tuple[Scope, dict[str, str]]:
        """Return the scope after a step, and the SQL of the step's expressions.

        Records for which an expression fails do not reach the scope. The expressions read the
        fields of the node `before`. `key` is the name of the expression that becomes a key. For
        this expression, the returned SQL computes the key's text.
        """
        types = before.result_types | METADATA | CHANGE_METADATA | {MAPPED_KEY: "STRING"}
        return self.guard_if(
            self.evaluation_condition(scope, before),
            scope,
            node,
            types,
            texts,
            key=key,
        )

    def guard_if(
        self,
        condition: str,
        scope: Scope,
        node: nodes.Node,
        types: Types,
        texts: Mapping[str, str],
        *,
        key: str = "",
        reported: bool = True,
    ) -> tuple[Scope, dict[str, str]]:
        """Do the same as `guard`, but for expressions over any fields, and with a condition.

        If `reported` is false, the records for which an expression fails are left out, but not
        reported.
        """
        checked: dict[str, str] = {}
        for name, text in texts.items():
            checked[name] = with_utf8_checks(text, types)
        key_column = None
        if key in checked:
            key_column = self._key_column(scope, checked[key])
        sqls: dict[str, str] = {}
        fallible: list[str] = []
        for name, text in checked.items():
            if name == key and key_column is not None:
                sqls[name] = key_column
                continue
            sqls[name] = self.sql(scope, text)
            # A key that is computed can always fail, because it may be too long.
            if name == key or may_fail(text, types):
                fallible.append(name)
        if not fallible:
            return scope, sqls
        fallible_sqls: list[str] = []
        causes: list[tuple[str, str]] = []
        for name in fallible:
            fallible_sqls.append(sqls[name])
            for part, why in failure_causes(checked[name]):
                causes.append((self.sql(scope, part), why))
        index_of_key = None
        if key in fallible:
            index_of_key = fallible.index(key)
        expression = FallibleExpression(
            self._fallible_name(node),
            node.number,
            condition,
            tuple(fallible_sqls),
            index_of_key,
            tuple(causes),
        )
        reported_with = scope if reported else None
        after, expression = self._add_fallible(scope, node, expression, reported_with=reported_with)
        for number, name in enumerate(fallible):
            sqls[name] = expression.result(number)
        if index_of_key is not None:
            sqls[key] = expression.key_text
        return after, sqls

    def guard_results(
        self,
        scope: Scope,
        node: nodes.Node,
        columns: Sequence[str],
        before: Scope,
    ) -> Scope:
        """Return the scope of records for which a step's results can be written as JSON.

        `columns` are the columns with the results.

        A dead letter has the value of `before`, the scope before the step.
        """
        expression = FallibleExpression(
            self._fallible_name(node),
            node.number,
            scope.passed,
            tuple(columns),
            None,
            (),
        )
        after, _ = self._add_fallible(scope, node, expression, reported_with=before)
        return after

    def register_failure(self, scope: Scope, node: nodes.Node, error: str) -> None:
        """Register that a step can fail; `error` is the SQL of the error message."""
        # A step after a topic's table may be computed twice: in the stage that reads the topic's
        # records, and in the stage that reads the results of the operator that stores the table.
        # The same records fail both times, so report them only once.
        if not isinstance(node, nodes.Aggregate) and self._fails_in_another_stage(
            node, scope.stage
        ):
            return
        key = value = ""
        if scope.stage:
            key, value = self.read(scope, "_key"), self.json(scope)
        else:
            self.metadata_read |= {"_topic", "_partition", "_offset", "_timestamp"}
        column = f"error_{error.replace('.', '_')}"
        failure = Failure(self.steps[node.number], column, scope.stage, error, "", key, value)
        self._failures.append((failure, scope))

    def failures(self) -> Iterator[Failure]:
        """Yield the places where steps can fail. Call this only when all columns exist."""
        for failure, scope in self._failures:
            conditions = [f"{failure.error} IS NOT NULL"]
            # If a step fails for a table's old value, the failure was already reported when this
            # value was new.
            if scope.stage:
                conditions.append("NOT old")
            # If another step turns a record into several rows, report a failure for this record
            # only once.
            conditions += self._first_row_conditions(scope)
            yield replace(failure, once=all_of(conditions))

    def _fails_in_another_stage(self, node: nodes.Node, stage: int) -> bool:
        for failure, _ in self._failures:
            if failure.step.number == node.number and failure.stage != stage:
                return True
        return False

    def _fallible_name(self, node: nodes.Node) -> str:
        count = 0
        for expression in self._fallible:
            if expression.step == node.number:
                count += 1
        return f"t{node.number}_{count}"

    def _add_fallible(
        self,
        scope: Scope,
        node: nodes.Node,
        expression: FallibleExpression,
        *,
        reported_with: Scope | None,
    ) -> tuple[Scope, FallibleExpression]:
        """Return the scope after an expression, and the expression or an equal one, added earlier.

        A failure is reported with the value of the scope `reported_with`.
        """
        # A node can have several edges with the same expressions. Compute these only once, and
        # report their failures only once.
        for other in self._fallible:
            if replace(expression, name=other.name) == other:
                expression = other
                break
        else:
            self._fallible.append(expression)
            self.add(scope.stage, scope.depth + 1, expression)
            if reported_with is not None:
                self.register_failure(reported_with, node, expression.error)
        passed = f"({scope.passed} AND {expression.error} IS NULL)"
        return replace(scope, depth=scope.depth + 1, passed=passed), expression

    def _key_column(self, scope: Scope, key: str) -> str | None:
        """Return the column with a key's text.

        The key must be the record's key, or a field that a source also decodes as text. Return None
        for any other key, because its text must be computed.
        """
        (name, start, stop), *more = parse(key).names or (("", 0, 0),)
        if more or start != 0 or stop != len(key):
            return None
        if scope.columns[name] in self._field_of:
            number, field_name = self._field_of[scope.columns[name]]
            self.key_fields_read.setdefault(number, {})[field_name] = None
            source = self.pipeline.whole.nodes[number]
            assert isinstance(source, nodes.Source)
            return key_column(source, field_name)
        if name in ("_key", MAPPED_KEY):
            return self.read(scope, name)
        return None


def _is_first_row(explosion: int) -> str:
    """Return a condition that is true in the row of an array's first element or an empty array."""
    return f"coalesce(x{explosion}_pos, 0) = 0"


def column_name(prefix: str, field_name: str) -> str:
    """Return the name of the job's column for a field. The name needs no quotes in SQL."""
    # Also escape an underscore that looks like the start of an escape: two fields must never share
    # a column.
    to_escape = "[^A-Za-z0-9_]|_(?=x[0-9a-f]+_)"
    escaped = re.sub(to_escape, lambda sign: f"_x{ord(sign[0]):x}_", field_name)
    return f"{prefix}_{escaped}"


def key_column(source: nodes.Source, field_name: str) -> str:
    """Return the name of the column with a source's field as the text of a key.

    For a text field, this is the field's own column.
    """
    prefix = "s" if source.fields[field_name] == "STRING" else "sk"
    return column_name(f"{prefix}{source.number}", field_name)
