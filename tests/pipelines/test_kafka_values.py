"""Values and keys as Kafka's own serializers write them."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sluice import Pipeline, TopologyError, kafka_key, kafka_value
from sluice.testing import TopologyTestDriver
from sluice.topology.kafka_values import KafkaKind

pytestmark = pytest.mark.pipelines

VALUES: list[tuple[KafkaKind, bytes, str]] = [
    ("long", struct.pack(">q", -(2**63)), str(-(2**63))),
    ("integer", struct.pack(">i", 7), "7"),
    ("short", struct.pack(">h", -2), "-2"),
    ("double", struct.pack(">d", 0.5), "0.5"),
    ("float", struct.pack(">f", 0.5), "0.5"),
    ("boolean", b"\1", "true"),
    ("uuid", b"12345678-1234-5678-1234-567812345678", "12345678-1234-5678-1234-567812345678"),
]


@pytest.mark.parametrize(("kind", "data", "text"), VALUES)
def test_values_and_keys_are_written_as_they_are_read(
    kind: KafkaKind, data: bytes, text: str
) -> None:
    pipeline = Pipeline("plain")
    numbers = pipeline.stream("numbers", value=kafka_value(kind), key=kafka_key(kind))
    numbers.to("copies", value=kafka_value(kind), key=kafka_key(kind))
    numbers.group_by_key().count(store="counts")
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("numbers", data, key=data)
        driver.pipe("numbers", data + b"\0", key=data)
        driver.commit()
        (record,) = driver._run.output.records["copies"]
        assert (record["key"], record["value"]) == (data, data)
        assert driver.store("counts") == {text: 1}
        (letter,) = driver.dead_letters()
        assert letter.headers["sluice.reason"] == "malformed"


def test_a_number_that_does_not_fit_is_unwritten() -> None:
    pipeline = Pipeline("plain")
    pipeline.stream("numbers", value=int).to("shorts", value=kafka_value("short"))
    with TopologyTestDriver(pipeline) as driver:
        for number in (1, 2**15):
            driver.pipe("numbers", number)
        assert [output.value for output in driver.read("shorts")] == [b"\0\1"]
        assert driver.counts()["unwritten/shorts"] == 1


def test_unknown_types_are_refused() -> None:
    kind: Any = "decimal"
    with pytest.raises(TopologyError, match="long, integer"):
        kafka_value(kind)
