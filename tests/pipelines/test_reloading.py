"""A pipeline's file that is edited and loaded again, as in a notebook: Spark's Python workers take the new code too."""

from __future__ import annotations

from pathlib import Path

from sluice.topology import load_pipeline
from tests.pipelines.conftest import Drive

TEXT = """
from msgspec import Struct
from sluice import Pipeline

class Sale(Struct):
    amount: int

class Price(Struct):
    NAME: int

def priced(sale):
    return Price(sale.amount * 10)

class Twice:
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record.key, record.value.NAME * 2)

pipeline = Pipeline("shop", workers=1)
prices = pipeline.stream("sales", value=Sale).map_values(priced, returns=Price)
prices.to("prices")
prices.process(Twice, returns=int).output.to("twice")
"""
EDITS = {
    "the function": ("* 10", "* 11", {"cents": 11}, 22),
    "the contract": ("cents", "euros", {"euros": 11}, 22),
    "the processor": ("* 2", "* 3", {"euros": 11}, 33),
}


def test_an_edited_file_runs_with_its_new_code(drive: Drive, tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(TEXT.replace("NAME", "cents"))
    driver = drive(load_pipeline(tmp_path, "shop"))
    driver.pipe("sales", {"amount": 1}, key="k")
    assert [record.value for record in driver.output("prices")] == [{"cents": 10}]
    for edit, (old, new, price, twice) in EDITS.items():
        file.write_text(file.read_text().replace(old, new))
        driver = drive(load_pipeline(tmp_path, "shop"))
        driver.pipe("sales", {"amount": 1}, key="k")
        assert [record.value for record in driver.output("prices")] == [price], edit
        assert [record.value for record in driver.output("twice")] == [twice], edit
