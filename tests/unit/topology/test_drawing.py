"""Topologies as text and SVG: readable, well-formed, and safe for any text."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec import Struct

from sluice import Decimal2, Pipeline, tumbling
from sluice.topology import drawing, load_pipeline
from sluice.topology.pipeline import Pipeline as PipelineType

SVG = "{http://www.w3.org/2000/svg}"


class Sale(Struct):
    shop: str
    amount: Decimal2
    at: datetime


class Shop(Struct):
    shop: str
    city: str


def build(where: str = "amount > 1") -> PipelineType:
    pipeline = Pipeline("shop", workers=3)
    sales = pipeline.stream("sales", value=Sale, key="shop", event_time="at")
    shops = pipeline.global_table("shops", value=Shop, key="shop")
    big = sales.filter(where)
    big.select("shop", cents="amount * 100").to("big_sales")
    groups = big.group_by("shop")
    groups.count(store="n").join(shops, how="left").to("n_with_city")
    groups.windowed_by(tumbling("15 seconds", grace="1 second")).count(store="n_window")
    return pipeline


def test_text_shows_each_step_below_its_parent() -> None:
    assert (
        drawing.text(build())
        == """\
pipeline shop, 3 workers
  stream sales: Sale, event time at
    filter: amount > 1
      select: shop, cents = amount * 100
        topic big_sales
      store n: count(*) by shop
        left join with shops
          topic n_with_city
      store n_window: count(*) by shop, tumbling(15 s, grace 1 s)
  global table shops: Shop, event time of the record"""
    )


def test_the_svg_names_the_numbers_of_nodes_and_inputs() -> None:
    root = ElementTree.fromstring(drawing.svg(build()))
    groups = [group.attrib for group in root.iter(f"{SVG}g")]
    links = {group["data-number"]: group["data-inputs"] for group in groups}
    assert links == {
        "0": "",
        "1": "",
        "2": "0",
        "3": "2",
        "4": "3",
        "5": "2",
        "6": "5 1",
        "7": "6",
        "8": "2",
    }
    assert groups[2]["data-name"] == "filter-2"


def test_text_says_how_time_goes_on_without_records_and_when_rows_expire() -> None:
    pipeline = Pipeline("shops", workers=1, idle_timeout="1 minute", advance_when_idle="30 seconds")
    sales = pipeline.stream("sales", value=Sale, key="shop").with_headers({"shop": "shop"})
    sales.select("shop", "at", _timestamp="at", _headers={"at": "CAST(at AS STRING)"}).to_table(
        store="open", expires_at="at"
    )
    text = drawing.text(pipeline)
    assert text.startswith(
        "pipeline shops, 1 worker, ignores partitions that are idle for 1 min, stream time advances with the clock after "
        "30 s without records\n"
    )
    assert "  set headers: shop = shop\n" in text
    assert "  set time and headers: " in text
    assert "store open: rows expire at the time at" in text


def test_a_join_names_the_store_that_its_other_input_comes_from() -> None:
    pipeline = Pipeline("shop")
    sales = pipeline.stream("sales", value=Sale)
    large = sales.group_by_key().count(store="counts").filter("value > 9")
    sales.filter("amount > 1").join(large.join(pipeline.table("shops", value=Shop)))
    sales.join(large)
    text = drawing.text(pipeline)
    assert "inner join with filter of counts" in text
    assert "inner join with join of counts" in text


def test_svg_is_well_formed_and_shows_every_step_within_its_bounds() -> None:
    pipeline = build()
    root = ElementTree.fromstring(drawing.svg(pipeline))
    assert root.tag == f"{SVG}svg"
    boxes = root.findall(f"{SVG}g")
    assert len(boxes) == len(pipeline.nodes)
    assert len(root.findall(f"{SVG}path")) == 8
    assert "store n_window" in [box[2].text for box in boxes]
    assert [box.attrib["data-at"] for box in boxes] == [node.at for node in pipeline.nodes]
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    places = [(int(rect.attrib["x"]), int(rect.attrib["y"])) for rect in root.iter(f"{SVG}rect")]
    assert len(set(places)) == len(places)
    assert all(0 <= x < width and 0 <= y < height for x, y in places)


HOSTILE = {
    "script": "shop = '</text><script>alert(1)</script>'",
    "quotes": 'shop = \'" onload="alert(1)\' OR shop = "\'"',
    "entity": "shop = '&amp;&lt;'",
    "signs that XML cannot hold": "shop = '\x00\x08\x1b\ufffe\ud800'",
    "line breaks": "shop = 'a'\nOR\n\tshop = 'b'",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_stays_text(kind: str) -> None:
    pipeline = build(HOSTILE[kind])
    root = ElementTree.fromstring(drawing.svg(pipeline).encode())
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        "svg",
        "g",
        "title",
        "rect",
        "text",
        "path",
    }
    assert not [name for element in root.iter() for name in element.attrib if name.startswith("on")]
    assert len(drawing.text(pipeline).splitlines()) == 1 + len(pipeline.nodes)


def test_a_long_expression_is_shortened_in_the_box() -> None:
    long = " OR ".join(f"amount = {n}" for n in range(100))
    box = ElementTree.fromstring(drawing.svg(build(long))).findall(f"{SVG}g")[2]
    assert box[0].text == f"filter: {long}"
    assert (box[3].text or "").endswith("…")
    assert len(box[3].text or "") < 40


def test_the_repositorys_own_pipeline_can_be_drawn() -> None:
    pipeline = load_pipeline(Path(__file__).parents[3] / "spark_jobs", "orders")
    assert "store general_orders_revenue_window" in drawing.text(pipeline)
    assert (
        ElementTree.fromstring(drawing.svg(pipeline)).attrib["aria-label"] == "topology of orders"
    )


def test_a_notebook_draws_a_pipeline() -> None:
    pipeline = build()
    assert pipeline._repr_svg_() == drawing.svg(pipeline)
    assert Pipeline("empty")._repr_svg_() is None
