"""The types that Sluice finds for expressions without Spark are those that Spark finds."""

from __future__ import annotations

from contextlib import suppress

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sluice.sql.typed_expression import structure_of
from sluice.values.sql_types import compact, is_complete
from tests.unit.sql.spark_arguments import ACCEPTED
from tests.unit.sql.spark_arguments import COLUMNS as COLUMNS_OF_SPARK

LINES = "ARRAY<STRUCT<product: BIGINT, quantity: BIGINT>>"
COLUMNS = {
    "id": "BIGINT", "big": "INT", "t": "STRING", "lines": LINES, "tags": "ARRAY<STRING>", "nums": "ARRAY<INT>",
    "more": "ARRAY<STRUCT<product: INT, quantity: BIGINT>>", "longs": "ARRAY<BIGINT>", "nested": "ARRAY<ARRAY<INT>>",
    "m": "MAP<STRING, BIGINT>", "n": "MAP<STRING, STRUCT<a: INT>>", "im": "MAP<INT, STRING>", "v": "VARIANT",
    "o": "STRUCT<a: INT, b: STRUCT<c: STRING, d: ARRAY<STRUCT<e: DOUBLE>>>>", "d": "DECIMAL(12,2)", "day": "DATE",
    "at": "TIMESTAMP", "deep": "ARRAY<STRUCT<x: ARRAY<STRUCT<y: INT>>>>",
    "es": "ARRAY<STRUCT<key: STRING, value: INT>>",
}  # fmt: skip
EXPRESSIONS = [
    "filter(lines, l -> l.quantity > 1)",
    "transform(lines, (l, i) -> struct(id AS a, l.product, i))",
    "transform(lines, l -> l.product + 1)", "transform(lines, l -> upper(t))",
    "transform(tags, x -> struct(x))", "transform(tags, x -> struct(x, id, 1, x AS y))",
    "transform(nested, x -> transform(x, y -> struct(y AS a, id)))",
    "transform(deep, e -> e.x[0].y)", "transform(deep, e -> filter(e.x, f -> f.y > 1))",
    "slice(lines,1,1)", "array_sort(lines)", "array_sort(lines, (a,b) -> 0)",
    "sort_array(lines, false)", "reverse(lines)", "reverse(t)", "reverse(id)",
    "element_at(lines,1)", "element_at(n,'a')", "try_element_at(lines,1)", "get(lines,0)",
    "lines[0]", "n['a']", "n['a'].a", "im[1]", "flatten(nested)",
    "flatten(transform(lines, l -> lines))", "array_distinct(lines)", "array_union(lines,more)",
    "array_union(nums,longs)", "array_except(nums,longs)", "array_except(lines,more)",
    "array_intersect(nums,longs)", "array_append(nums,id)", "array_append(lines,lines[0])",
    "array_prepend(lines,more[0])", "array_insert(lines,1,lines[0])", "array_remove(nums,id)",
    "array_repeat(o,2)", "array_repeat(lines[0],2)", "arrays_zip(lines.product, tags, nums)",
    "arrays_zip(lines, tags)", "arrays_zip(slice(lines,1,1), tags)", "map_entries(m)",
    "map_entries(n)", "map_from_entries(es)", "map_from_entries(map_entries(n))",
    "map_from_arrays(tags,nums)", "map('a',o)", "map('a',1,'b',id)", "map(t, lines[0])",
    "map_concat(m,m)", "map_concat(m, map('a',1))", "map_filter(m,(k,v)->v>1)",
    "map_filter(n,(k,v)->v.a>1)", "transform_values(n,(k,v)->v.a)",
    "transform_values(m,(k,v)->struct(k AS x,v AS y))", "transform_keys(m,(k,v)->v)",
    "map_zip_with(m,n,(k,a,b)->b)", "zip_with(lines,tags,(x,y)->struct(x,y))",
    "zip_with(lines,nums,(x,y)->x)", "aggregate(nums,0,(acc,x)->acc+x)",
    "aggregate(nums,0,(acc,x)->acc+x, acc -> struct(acc AS total))",
    "aggregate(lines,id,(acc,x)->acc+x.quantity)",
    "reduce(lines, struct(0L AS a), (acc,x)-> struct(acc.a + x.product AS a))",
    "from_json(t,'a INT')", "from_json(t,'a INT, b ARRAY<STRUCT<c: STRING>>')",
    "from_json(t,'ARRAY<STRUCT<product: INT>>')", "from_json(t,'map<string,int>')",
    "from_json(t,'a long, b byte, c string, d decimal, e decimal(5,1), f timestamp, g double')",
    "from_csv(t,'a INT, b STRING')", "named_struct('a',1,'b',id)", "struct(id,o.b.c,1,t AS e)",
    "struct(lines[0].product, m['a'], o.b)", "struct(m['a'])", "struct(lines[0])",
    "struct(upper(t))", "struct(id + 1, t)", "(id, t)", "(id, o.a, 1)", "(id AS x, t)",
    "nvl(lines,more)", "ifnull(lines[1],lines[0])", "nvl2(id,lines,more)",
    "nullif(lines[0],lines[1])", "coalesce(lines, array())", "coalesce(lines, more)",
    "coalesce(array(), lines)", "coalesce(lines[0], struct(1 AS product, 2 AS quantity))",
    "coalesce(m, map())", "IF(id > 0, lines, NULL)", "IF(id > 0, lines, array())",
    "IF(id>0, lines[0], more[0])", "CASE WHEN id = 1 THEN lines[0] END",
    "CASE id WHEN 1 THEN lines WHEN 2 THEN more ELSE array() END",
    "CASE WHEN id=1 THEN NULL ELSE o END", "str_to_map(t)", "sequence(1,id)", "sequence(1,2)",
    "sequence(day,day)", "split(t,',')", "sentences(t)", "regexp_extract_all(t,'a')",
    "array_max(lines)", "array_max(nums)", "array_min(tags)", "exists(nums, x->x > 1)",
    "forall(nums,x->x > 1)", "array_compact(lines)", "array_position(nums,1)", "collect_list(o)",
    "collect_set(o)", "collect_list(lines)", "array_agg(t)", "max_by(o,id)", "min_by(lines,id)",
    "mode(t)", "any_value(o)", "first(o)", "last(lines)", "first_value(o)", "max(o)",
    "variant_get(v,'$.a','int')", "try_variant_get(v,'$.a','struct<a: int>')",
    "variant_get(v,'$.a')", "lines.product", "deep.x", "o.b.d", "o.b.d.e", "o.b.d[0].e", "n.a",
    "m.a", "xpath(t,'b')", "json_object_keys(t)", "map_keys(im)", "map_values(n)",
    "CAST(o AS STRUCT<x: BIGINT, y: STRUCT<c: STRING, d: ARRAY<STRUCT<e: DOUBLE>>>>)",
    "concat(lines,more)", "concat(nums,longs)", "concat(lines, array())", "lines || lines",
    "concat(t,id)", "greatest(nums, nums)", "array(lines[0])", "array(lines[0], more[0])",
    "array(1, 2.5)", "array(struct(id AS product))", "array(array(1),array())", "array(NULL, 1)",
    "array(o, NULL)", "array(day, at)", "coalesce(day, at)", "IF(id>0, day, at)",
    "map_values(map_filter(n, (k,v) -> true))", "transform(map_entries(n), e -> e.value.a)",
    "filter(map_values(n), x -> x.a > 1)[0].a", "element_at(filter(lines, l -> true), 1).product",
    "transform(sequence(1,3), i -> struct(i AS n))", "try_element_at(map_values(n), 1)",
    "array_append(nums, NULL)", "flatten(array(lines, more))",
]  # fmt: skip


def types_of_spark(
    spark: SparkSession, columns: dict[str, str], expressions: list[str]
) -> dict[str, str]:
    """The expressions that Spark accepts, each with its type."""
    frame = spark.createDataFrame([], ", ".join(f"{name} {kind}" for name, kind in columns.items()))
    types: dict[str, str] = {}
    for expression in expressions:
        with suppress(AnalysisException):
            types[expression] = (
                frame.selectExpr(f"{expression} AS x").schema["x"].dataType.simpleString()
            )
    return types


def test_the_types_of_lists_maps_and_objects_are_those_of_spark(spark: SparkSession) -> None:
    types = types_of_spark(spark, COLUMNS, EXPRESSIONS)
    assert types.keys() == {*EXPRESSIONS}
    found = {
        expression: compact(structure_of(expression, COLUMNS)).replace("`", "")
        for expression in EXPRESSIONS
    }
    assert found == types


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.heavy)])
def test_the_types_that_are_known_are_those_of_spark(spark: SparkSession, every: int) -> None:
    expressions: list[str] = []
    for columns, texts in ACCEPTED.items():
        for text in texts:
            expressions += [text.replace("{}", column) for column in columns.split()]
    for expression, kind in types_of_spark(spark, COLUMNS_OF_SPARK, expressions[::every]).items():
        ours = structure_of(expression, COLUMNS_OF_SPARK)
        if is_complete(ours):
            assert (expression, compact(ours).replace("`", "")) == (expression, kind)
