"""The type of an expression decides whether later SQL reads the fields of its results, or the value as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
from sluice.topology import Stream
from tests.pipelines.conftest import Drive


class Line(Struct):
    product: int
    quantity: int = 1


class Order(Struct):
    id: int
    lines: list[Line | None] = []
    more: list[Line] = []
    by_shop: dict[str, Line] = {}
    line: Line | None = None
    text: str = '[{"product": 4}]'
    tags: list[str] = []


def orders(name: str = "elements") -> Stream[Order]:
    return Pipeline(name).stream("orders", value=Order)


LINES = {"product": "BIGINT", "quantity": "BIGINT"}
LINE_TYPE = "STRUCT<product: BIGINT, quantity: BIGINT>"
LISTS_OF_LINES = [
    "lines", "array(lines[0])", "array(line, lines[0])", "coalesce(more, lines)",
    "IF(id > 0, lines, NULL)", "CASE WHEN id > 0 THEN lines END",
    "CASE id WHEN 1 THEN more ELSE lines END", "map_values(by_shop)", "array_compact(lines)",
    "array(struct(id AS product, 2L AS quantity))",
]  # fmt: skip
LISTS_OF_LINES_IN_SPARK = [
    "filter(lines, l -> l.quantity > 1)", "slice(lines, 1, 1)", "array_sort(lines)",
    "sort_array(lines)", "concat(lines, more)", "lines || more", "coalesce(lines, array())",
    "reverse(lines)", "array_distinct(lines)", "array_union(lines, more)",
    "array_except(lines, more)", "array_intersect(lines, lines)", "flatten(array(lines, more))",
    "array_append(lines, line)", "array_prepend(lines, line)", "array_insert(lines, 1, line)",
    "array_remove(lines, line)", "array_repeat(line, 2)", "nvl(lines, more)", "ifnull(lines, more)",
    "nvl2(id, lines, more)", "nullif(lines, more)",
    "transform(lines, l -> struct(l.product AS product, l.quantity AS quantity))",
    "transform(map_entries(by_shop), e -> e.value)",
    "map_values(map_filter(by_shop, (k, v) -> v.quantity > 0))",
    "zip_with(lines, tags, (l, t) -> l)", "transform(sequence(1, 2), i -> lines[i - 1])",
    "from_json(text, 'ARRAY<STRUCT<product: BIGINT, quantity: BIGINT>>')",
    "get(transform(array(lines, more), list -> list), 0)",
]  # fmt: skip
LINE = [
    "lines[0]", "line", "by_shop['a']", "coalesce(lines[1], lines[0])",
    "IF(id = 1, lines[0], line)", "element_at(lines, 1)", "CASE WHEN id = 1 THEN lines[0] END",
    "struct(id AS product, 2L AS quantity)", "(line)",
    "named_struct('product', id, 'quantity', 2L)", "struct(lines[0].product, line.quantity)",
]  # fmt: skip
LINE_IN_SPARK = [
    "try_element_at(lines, 5)", "get(lines, 0)", "array_max(lines)",
    "from_json(text, 'product BIGINT, quantity BIGINT')", "aggregate(more, line, (a, l) -> l)",
    "filter(lines, l -> true)[0]", "(id AS product, id AS quantity)",
]  # fmt: skip


@pytest.mark.parametrize("items", [*LISTS_OF_LINES, *LISTS_OF_LINES_IN_SPARK])
def test_elements_that_are_objects_have_fields(items: str) -> None:
    elements = orders().flat_map_values(items)
    assert (elements.fields, elements.node.result_shape.scalar) == (LINES, False)
    elements.filter("product > 1").select(doubled="2 * quantity", whole="struct(product, quantity)")
    with pytest.raises(
        TopologyError, match="The value is an object: write its fields without value"
    ):
        elements.filter("value.product > 1")


@pytest.mark.parametrize("item", [*LINE, *LINE_IN_SPARK])
def test_a_value_that_is_an_object_has_fields(item: str) -> None:
    stream = orders()
    for mapped in (stream.map_values(item), stream.to_table(store="t").map_values(item)):
        assert (mapped.fields, mapped.node.result_shape.scalar) == (LINES, False)
        mapped.filter("product > 1")
        with pytest.raises(TopologyError, match="The value is an object"):
            mapped.filter("value.product > 1")


@pytest.mark.parametrize(
    ("items", "fields"),
    [
        ("transform(lines, l -> struct(id AS order_id, l.product))", {"order_id": "BIGINT", "product": "BIGINT"}),
        ("transform(lines, (l, i) -> struct(i, l.product + 1))", {"i": "INT", "col2": "BIGINT"}),
        ("arrays_zip(lines.product, tags)", {"product": "BIGINT", "tags": "STRING"}),
        ("map_entries(by_shop)", {"key": "STRING", "value": LINE_TYPE}),
        (
            "array(struct(id, (line), by_shop['a'], upper(text)))",
            {"id": "BIGINT", "line": LINE_TYPE, "a": LINE_TYPE, "col4": "STRING"},
        ),
        ("array(struct(aes_decrypt(text, 'k') AS a, f.b))", None),
        ("from_json(text, 'array<struct<a: decimal, b: array<long>>>')", {"a": "DECIMAL(10,0)", "b": "ARRAY<BIGINT>"}),
        ("array(named_struct('a', elt(id, text, 'x'), 'b', id))", {"a": "", "b": "BIGINT"}),
        ("tags", {"value": "STRING"}), ("lines.product", {"value": "BIGINT"}), ("reverse(tags)", {"value": "STRING"}),
        ("split(text, ',')", {"value": "STRING"}), ("sequence(1, id)", {"value": "BIGINT"}),
        ("from_json(text, schema_of_json('[{}]'))", {"value": ""}),
    ],
)  # fmt: skip
def test_elements_have_the_fields_that_the_expression_gives_them(
    items: str, fields: dict[str, str] | None
) -> None:
    if fields is None:
        with pytest.raises(TopologyError, match="unknown fields: f"):
            orders().flat_map_values(items)
        return
    line = "STRUCT<product: BIGINT, quantity: BIGINT>"
    assert orders().flat_map_values(items).fields == {
        name: line if kind is None else kind for name, kind in fields.items()
    }


def test_a_pair_of_flat_map_has_a_key_and_a_value() -> None:
    pairs = orders().flat_map("transform(lines, l -> struct(l.product AS key, l AS value))")
    assert pairs.fields == LINES
    assert orders().flat_map("map_entries(by_shop)").fields == LINES
    with pytest.raises(
        TopologyError, match=r"at test_elements\.py:\d+: the elements of 'lines' have no field key"
    ):
        orders().flat_map("lines")
    with pytest.raises(TopologyError, match="the elements of 'tags' have no field key"):
        orders().flat_map("tags")


RECORD = {
    "id": 1,
    "lines": [{"product": 1, "quantity": 2}, None, {"product": 3, "quantity": 1}],
    "more": [{"product": 5}],
    "by_shop": {"a": {"product": 7, "quantity": 7}},
    "line": {"product": 9, "quantity": 9},
    "tags": ["x", "y", "z"],
}  # fmt: skip


def test_elements_and_values_keep_their_fields_on_arrow(drive: Drive) -> None:
    assert_fields_are_kept(drive, LISTS_OF_LINES, LINE)


@pytest.mark.heavy
@pytest.mark.spark
def test_elements_and_values_keep_their_fields_in_spark(drive: Drive) -> None:
    lists = [*LISTS_OF_LINES, *LISTS_OF_LINES_IN_SPARK]
    assert_fields_are_kept(drive, lists, [*LINE, *LINE_IN_SPARK])


def assert_fields_are_kept(drive: Drive, lists: list[str], singles: list[str]) -> None:
    """Check that each expression gives the same values whether they are written as a whole or field by field."""
    expected: Any = RECORD["lines"]
    # Spark takes long to plan very many steps at once.
    for first in range(0, len(lists), 8):
        driver = _driver_with_kept_fields(drive, lists[first : first + 8], [])
        if first == 0:
            assert [record.value for record in driver.output("list0_whole")] == expected
    for first in range(0, len(singles), 8):
        driver = _driver_with_kept_fields(drive, [], singles[first : first + 8])
        if first == 0:
            assert [record.value for record in driver.output("single0_whole")] == expected[:1]


def _driver_with_kept_fields(
    drive: Drive, lists: list[str], singles: list[str]
) -> TopologyTestDriver:
    pipeline = Pipeline("kept", workers=1)
    stream = pipeline.stream("orders", value=Order)
    made = {f"list{number}": stream.flat_map_values(items) for number, items in enumerate(lists)}
    made |= {f"single{number}": stream.map_values(item) for number, item in enumerate(singles)}
    for name, results in made.items():
        results.to(f"{name}_whole")
        results.select(product="product", quantity="quantity", both="struct(product, quantity)").to(
            f"{name}_fields"
        )
        results.to_table(store=name).to_stream().map_values("product + quantity").to(f"{name}_sums")
    driver = drive(pipeline)
    driver.pipe("orders", RECORD, "k")
    assert driver.dead_letters() == []
    for name in made:
        values = [record.value for record in driver.output(f"{name}_whole")]
        assert all(value is None or {*value} == {*LINES} for value in values), name
        wholes = [value or dict.fromkeys(LINES) for value in values]
        assert [record.value for record in driver.output(f"{name}_fields")] == [
            w | {"both": w} for w in wholes
        ], name
        sums: list[int | None] = []
        for value in values:
            is_null = value is None or None in value.values()
            sums.append(None if is_null else value["product"] + value["quantity"])
        assert [record.value for record in driver.output(f"{name}_sums")] == sums, name
    return driver
