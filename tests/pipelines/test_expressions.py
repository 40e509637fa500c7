"""SQL expressions have the same results in a pipeline as in Spark: values, JSON, and the names of fields."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from sluice import Pipeline
from sluice.values import contracts
from sluice.values.sql_text import struct_json
from sluice.values.sql_types import struct_type
from tests.pipelines.conftest import Drive


class Place(Struct):
    city: str
    zip: int
    tags: list[str]


class Part(Struct, rename={"part_no": "part-no"}):
    part_no: int
    name: str


class Order(Struct, rename={"order_id": "order-id"}):
    amount: int
    order_id: int
    shop: str
    items: list[int]
    prices: list[float]
    place: Place
    parts: list[Part]
    counts: dict[str, int]
    size: int | None = None


ORDER = {
    "amount": 7, "order-id": 12, "shop": "Oslo", "items": [1, 2, 3], "prices": [1.5, 2.25], "size": None,
    "place": {"city": "Rome", "zip": 9, "tags": ["x", "y"]}, "counts": {"k": 4},
    "parts": [{"part-no": 1, "name": "nut"}, {"part-no": 2, "name": "bolt"}],
}  # fmt: skip

WRITTEN = [
    "arrays_zip(items, prices)", "arrays_zip(items, prices)[0].items", "arrays_zip(items, prices).prices",
    "arrays_zip((items), parts.name)", "arrays_zip(place.tags, items)", "arrays_zip(items)",
    "arrays_zip(items, array(1))", "(amount, shop)", "(amount, shop).amount", "(amount, (shop, `order-id`))",
    "((amount), shop)", "(amount, amount + 1)", "struct(amount, shop)", "struct((amount), ((shop)))",
    "struct(`order-id`).`order-id`", "struct(amount AS a, shop)", "struct(place.city, place, parts[0].name)",
    "struct(amount, amount + 1, 1, 'x')", "named_struct('x', (amount, shop))", "transform(items, i -> (i, amount))",
    "transform(items, amount -> struct(amount))", "transform(parts, p -> p.name)",
    "transform(arrays_zip(items, prices), z -> z.items + z.prices)",
    "zip_with(items, prices, (x, y) -> (x, y, shop))", "map_from_entries(arrays_zip(place.tags, prices))",
    "map('k', (amount, shop))['k'].shop", "to_json((amount, shop))", "typeof(arrays_zip(items, prices))",
    "typeof((amount, `order-id`))", "to_json(struct(items, struct(shop)))", "array((amount, shop), (amount, shop))",
    "IF(amount > 1, (amount, shop), NULL)", "coalesce((amount, shop), NULL)",
    "CASE WHEN amount > 1 THEN struct(shop) END", "filter(arrays_zip(items, prices), z -> z.prices > 2)",
    "aggregate(arrays_zip(items, prices), 0.0D, (sum, z) -> sum + coalesce(z.prices, 0.0D))",
    "(shop, amount) IN (('Oslo', 7))", "array_sort(arrays_zip(items, prices))",
    "element_at(arrays_zip(items, prices), 1).prices", "flatten(array(arrays_zip(items), arrays_zip(items)))",
    "slice(arrays_zip(items, prices), 1, 1)", "size IS NULL", "struct(size, items)",
    "named_struct('amount', shop).amount", "map_entries(counts)", "counts['k']", "parts.`part-no`",
]  # fmt: skip


class Expressions:
    """Makes random expressions over an order, with what takes names of fields from columns in every place."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def any(self, depth: int = 3) -> str:
        kinds = (
            [self.number, self.array, self.object, self.text] if depth else [self.number, self.text]
        )
        return self.chance.choice(kinds)(max(0, depth - 1))

    def several(self, depth: int, least: int = 1) -> str:
        return ", ".join(self.any(depth) for _ in range(self.chance.randint(least, 3)))

    def number(self, depth: int) -> str:
        plain = [
            "amount",
            "`order-id`",
            "place.zip",
            "items[0]",
            "parts[1].`part-no`",
            "(amount)",
            "size",
            "3",
        ]
        if not depth:
            return self.chance.choice(plain)
        made = [
            f"{self.number(0)} + {self.number(0)}",
            f"({self.number(0)}, {self.any(depth)}).{'amount'}",
        ]
        made += [f"array_size({self.array(depth)})", f"struct(amount, {self.any(depth)}).amount"]
        return self.chance.choice(plain + made)

    def text(self, depth: int) -> str:
        plain = ["shop", "place.city", "parts[0].name", "place.tags[0]", "(shop)", "'x'"]
        made = [f"to_json({self.object(depth)})", f"typeof({self.any(depth)})"] if depth else []
        return self.chance.choice(plain + made)

    def array(self, depth: int) -> str:
        plain = [
            "items",
            "prices",
            "parts",
            "place.tags",
            "parts.name",
            "parts.`part-no`",
            "(items)",
        ]
        if not depth:
            return self.chance.choice(plain)
        arrays = ", ".join(self.array(depth - 1) for _ in range(self.chance.randint(1, 3)))
        element = self.object(depth - 1)
        made = [f"arrays_zip({arrays})"] * 3 + [f"array({element}, {element})"]
        made.append(f"transform({self.array(0)}, x -> (x, {self.any(depth - 1)}))")
        made.append(
            f"zip_with({self.array(0)}, {self.array(0)}, (x, amount) -> struct(x, amount, shop))"
        )
        made.append(f"filter(arrays_zip({arrays}), x -> x IS NOT NULL)")
        return self.chance.choice(plain + made)

    def object(self, depth: int) -> str:
        if not depth:
            return self.chance.choice(
                ["place", "parts[0]", "struct(amount)", "(shop, amount)", "(place)"]
            )
        made = [
            f"struct({self.several(depth)})",
            f"({self.several(depth, 2)})",
            f"element_at({self.array(depth)}, 1)",
        ]
        made += [
            f"named_struct('n', {self.any(depth)}, 'amount', {self.any(depth)})",
            "arrays_zip(items, prices)[1]",
        ]
        made += [
            f"struct({self.any(depth)} AS named, shop)",
            f"IF(amount > 1, {self.object(0)}, NULL)",
        ]
        return self.chance.choice(made)


AGGREGATES = [
    "last(struct(amount, shop))", "collect_list((amount, shop))", "struct(count(*), sum(amount))",
    "arrays_zip(collect_list(amount), collect_list(shop))", "(max(amount), min(shop)).col1",
    "collect_list(arrays_zip(items, prices))", "(sum(amount), (count(*), min(shop)))",
    "struct((max(amount)), min(shop) AS least)", "first(arrays_zip(items, prices)[0].items)",
]  # fmt: skip


def resolved(frame: DataFrame, texts: list[str], *, grouped: bool = False) -> list[str]:
    """The expressions that Spark accepts, and whose results have a JSON."""

    def accepts(text: str) -> bool:
        try:
            made = frame.groupBy().agg(F.expr(text)) if grouped else frame.select(F.expr(text))
        except PySparkException:
            return False
        return names_fields_once(made.schema[0].dataType)

    return [text for text in dict.fromkeys(texts) if accepts(text)]


def names_fields_once(kind: DataType) -> bool:
    """Whether no object in values of a type has two fields with a name, which JSON could not tell apart."""
    match kind:
        case StructType(fields=fields):
            names = {field.name for field in fields}
            return len(names) == len(fields) and all(
                names_fields_once(field.dataType) for field in fields
            )
        case ArrayType(elementType=element):
            return names_fields_once(element)
        case MapType(valueType=value):
            return names_fields_once(value)
        case _:
            return True


def in_spark(frame: DataFrame, texts: list[str], *, grouped: bool = False) -> dict[str, Any]:
    """The results of expressions in Spark, as JSON, by number."""
    columns = [F.expr(text).alias(f"e{number}") for number, text in enumerate(texts)]
    rows = frame.groupBy().agg(*columns) if grouped else frame.select(*columns)
    (row,) = rows.selectExpr(f"{struct_json('struct(*)')} AS json").collect()
    results: dict[str, Any] = json.loads(row.json)
    return results


@pytest.mark.parametrize("count", [60, pytest.param(400, marks=pytest.mark.heavy)])
def test_expressions_have_the_same_results_as_in_spark(
    drive: Drive, spark: SparkSession, count: int
) -> None:
    kind = struct_type(contracts.fields(Order))
    frame = spark.createDataFrame([(json.dumps(ORDER),)], "json STRING").selectExpr(
        f"inline(array(from_json(json, '{kind}')))"
    )
    generated = Expressions(seed=7)
    texts = resolved(frame, [*WRITTEN, *(generated.any() for _ in range(count))])
    aggregates = resolved(frame, AGGREGATES, grouped=True)
    assert len(texts) > len(WRITTEN)
    assert len(aggregates) >= len(AGGREGATES) - 1
    columns = [(f"e{number}", text) for number, text in enumerate(texts)]
    parts = [dict(columns[begin : begin + 40]) for begin in range(0, len(columns), 40)]

    pipeline = Pipeline("expressions")
    orders = pipeline.stream("orders", value=Order)
    once = orders.deduplicate("_offset", within="1 day")
    for number, part in enumerate(parts):
        orders.select(part).to(f"of_source_{number}")
        once.select(part).to(f"of_operator_{number}")
    groups = orders.group_by_key()
    groups.aggregate(
        {f"e{number}": text for number, text in enumerate(aggregates)}, store="made"
    ).to("of_group")
    driver = drive(pipeline)
    driver.pipe("orders", ORDER, key="k", timestamp=1)

    assert driver.dead_letters() == []
    expected = in_spark(frame, texts)
    for topic in ("of_source", "of_operator"):
        records = [
            record for number in range(len(parts)) for record in driver.output(f"{topic}_{number}")
        ]
        made = {name: value for record in records for name, value in record.value.items()}
        wrong = [
            (texts[int(name[1:])], made[name], value)
            for name, value in expected.items()
            if json.dumps(made[name]) != json.dumps(value)  # the order of fields matters, too
        ]
        assert wrong == [], topic
    (record,) = driver.output("of_group")
    assert record.value == in_spark(frame, aggregates, grouped=True)
