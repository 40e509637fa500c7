"""Decoders that choose by the headers of a record what its value is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from sluice import Headers, Pipeline, Serde, TopologyError
from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline

pytestmark = pytest.mark.pipelines

PIPELINE = """
import msgspec
from msgspec import Struct

from sluice import Headers, Pipeline, Serde


class Opened(Struct, tag="opened"):
    account: str


class Paid(Struct, tag="paid"):
    account: str
    amount: int


TYPES = {"opened": Opened, "paid": Paid}


def event(data: bytes, headers: Headers) -> Opened | Paid:
    return msgspec.convert({"type": headers.text("type"), **msgspec.json.decode(data)}, Opened | Paid)


pipeline = Pipeline("bank")
events = pipeline.stream("events", value=Serde(Opened | Paid, decode=event), key="account")
events.filter("type = 'paid'").group_by_key().aggregate(store="paid", total="sum(amount)")
"""


def test_a_header_says_which_event_a_record_is(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(PIPELINE)
    with TopologyTestDriver(load_pipeline(tmp_path, "bank")) as driver:
        driver.pipe("events", b'{"account":"a"}', headers={"type": "opened"})
        driver.pipe("events", b'{"account":"a","amount":5}', headers={"type": "paid"})
        driver.pipe("events", b'{"account":"a","amount":5}', headers={"type": "odd"})
        driver.pipe("events", b'{"account":"a","amount":5}')
        driver.pipe("events", None, headers={"type": "paid"})
        assert driver.store("paid") == {"a": {"total": 5}}
        reasons = [letter.headers["sluice.reason"] for letter in driver.dead_letters()]
        assert reasons == ["contract", "contract", "null_value"]


class Event(Struct):
    id: str
    n: int


def of_cloud_event(data: bytes, headers: Headers) -> Event:
    return Event(headers.text("ce_id") or "", msgspec.json.decode(data)["n"])


def test_tables_and_global_tables_take_headers_too() -> None:
    pipeline = Pipeline("p")
    serde = Serde(Event, decode=of_cloud_event)
    pipeline.table("events", value=serde, store="newest")
    pipeline.global_table("others", value=serde, store="others")
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("events", b'{"n":1}', key="k", headers={"ce_id": "7"})
        driver.pipe("events", None, key="gone")
        driver.pipe("others", b'{"n":2}', key="k", headers={"ce_id": "8"})
        assert not driver.dead_letters()
        assert driver.store("newest") == {"k": {"id": "7", "n": 1}}
        assert driver.store("others") == {"k": {"id": "8", "n": 2}}


def test_other_parameters_are_refused() -> None:
    def odd(data: bytes, headers: Headers, more: str) -> Event:
        raise AssertionError

    with pytest.raises(TopologyError, match=r"must take \(data\) or \(data, headers\)"):
        Pipeline("p").stream("t", value=Serde(Event, decode=odd))
