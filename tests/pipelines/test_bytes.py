"""Topics whose values are bytes: read as they are, kept by all steps, and written as they are."""

from __future__ import annotations

from hashlib import md5
from typing import Any

import pytest
from msgspec import Struct

from sluice import Pipeline, Stream
from sluice.errors import TopologyError
from tests.pipelines.conftest import Drive

VALUES = [b"abc", b"", b"\x00\xff\xfe", b'"YWJj"', b"{}", b"null", bytes(range(256)) * 300]


class Sized(Struct):
    name: str


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_bytes_stay_as_they_are_through_all_steps(drive: Drive, by_one: bool) -> None:
    pipeline = Pipeline("bytes", workers=2)
    packets = pipeline.stream("packets", value=bytes)
    packets.to("copied", value=bytes)
    packets.filter("value IS NOT NULL").map_values(reverse, returns=bytes).map_values(
        reverse, returns=bytes
    ).to("mapped", value=bytes)
    packets.to_table(store="latest").to_stream().to("changed", value=bytes)
    pipeline.stream("sized", value=Sized).join(
        pipeline.table("shared", value=bytes, store="shared_now")
    ).select(n="md5(right)").to("joined")
    packets.map_values("md5(value)").to("hashed")
    driver = drive(pipeline)
    for number, value in enumerate(VALUES):
        driver.pipe("packets", value, f"k{number}")
        driver.pipe("shared", value, "s")
        if by_one:
            driver.commit()
    driver.pipe("sized", {"name": "x"}, "s")
    assert driver.dead_letters() == []
    for topic in ("copied", "mapped", "changed"):
        assert {record.key: record.value for record in driver.output(topic)} == {
            f"k{number}": value for number, value in enumerate(VALUES)
        }
    assert [record.value for record in driver.output("joined")] == [
        {"n": md5(VALUES[-1]).hexdigest()}
    ]
    assert len({record.value for record in driver.output("hashed")}) == len(VALUES)


def reverse(value: bytes) -> bytes:
    return value[::-1]


def test_tombstones_of_bytes_are_kept(drive: Drive) -> None:
    pipeline = Pipeline("tombstones")
    pipeline.table("packets", value=bytes, store="now").to("out", value=bytes)
    pipeline.stream("more", value=bytes | None, nulls="keep").to("kept", value=bytes)
    driver = drive(pipeline)
    for topic in ("packets", "more"):
        driver.pipe(topic, b"\xff", "k")
        driver.pipe(topic, None, "k")
    assert [record.value for record in driver.output("out")] == [b"\xff", None]
    assert [record.value for record in driver.output("kept")] == [b"\xff", None]
    assert driver.store("now") == {}


def test_only_bytes_are_written_as_bytes() -> None:
    pipeline = Pipeline("wrong")
    texts = pipeline.stream("texts", value=str)
    wrong: list[Stream[Any]] = [
        texts,
        texts.select(a="encode(value, 'UTF-8')"),
        texts.map_values(str.encode),
    ]
    for number, stream in enumerate(wrong):
        with pytest.raises(
            TopologyError, match=r"test_bytes\.py:\d+: value=bytes writes bytes, but .*encode"
        ):
            stream.to(f"wrong{number}", value=bytes)
    texts.map_values("encode(value, 'UTF-8')").to("out", value=bytes)
