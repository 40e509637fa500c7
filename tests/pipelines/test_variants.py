"""Values of the type VARIANT, which Arrow lacks, reach every kind of step."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline
from tests.pipelines.conftest import Drive


class Page(Struct):
    text: str


def unchanged(value: Any) -> Any:
    return value


@pytest.mark.spark
def test_variants_behind_an_aggregate_reach_every_kind_of_step(drive: Drive) -> None:
    pipeline = Pipeline("variants", workers=1)
    pages = pipeline.stream("pages", value=Page)
    lists = (
        pages.group_by_key()
        .aggregate(store="lists", parts="collect_list(parse_json(text))")
        .to_stream()
    )
    made = {
        "elements": lists.flat_map_values("parts"),
        "values": lists.map_values("parts[0]"),
        "of_stream": pages.map_values("parse_json(text)"),
    }
    rows = pipeline.table("rows", value=Page, store="rows")
    for name, parts in made.items():
        parts.to(f"{name}_out")
        parts.to_table(store=f"{name}_table").to_stream().to(f"{name}_table_out")
        parts.left_join(rows).to(f"{name}_join_out")
        parts.group_by_key().aggregate(store=f"{name}_last", part="last(value)").to_stream().to(
            f"{name}_last_out"
        )
        parts.map_values("variant_get(value, '$.a', 'int')").to(f"{name}_fields_out")
        parts.map_values(unchanged).to(f"{name}_python_out")
    driver = drive(pipeline)
    driver.pipe("pages", {"text": '{"a": 1}'}, "k")
    assert driver.dead_letters() == []

    def values(name: str) -> list[Any]:
        return [record.value for record in driver.output(name)]

    for name in made:
        assert (
            values(f"{name}_out")
            == values(f"{name}_table_out")
            == values(f"{name}_python_out")
            == [{"a": 1}]
        )
        assert values(f"{name}_fields_out") == [1]
        assert values(f"{name}_last_out") == [{"part": {"a": 1}}]
        assert values(f"{name}_join_out") != []
