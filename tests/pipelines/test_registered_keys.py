"""Keys in Protobuf and JSON with schemas in a registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
from msgspec import Struct

from sluice import Pipeline, json_schema_key, protobuf_key
from sluice.testing import TopologyTestDriver

pytestmark = pytest.mark.pipelines


class Place(Struct):
    country: str
    zip: int


Format = Callable[..., Any]


@pytest.mark.parametrize(
    ("of_key", "kind", "key", "text"),
    [
        (json_schema_key, str, "a", "a"),
        (json_schema_key, str, "7", "7"),
        (json_schema_key, int, 7, "7"),
        (json_schema_key, Place, {"country": "DE", "zip": 5}, '{"country":"DE","zip":5}'),
        (protobuf_key, Place, {"country": "DE", "zip": 5}, '{"country":"DE","zip":5}'),
    ],
)
@pytest.mark.parametrize("schema_in", ["prefix", "header"])
def test_keys_are_texts_inside_a_pipeline(
    of_key: Format, kind: type[Any], key: Any, text: str, schema_in: Literal["prefix", "header"]
) -> None:
    pipeline = Pipeline("keyed")
    read = pipeline.stream("totals", value=str, key=of_key(kind))
    read.to("copies", value=str, key=of_key(kind, schema_in=schema_in))
    read.group_by_key().count(store="counts")
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("totals", "x", key=key)
        assert driver.store("counts") == {text: 1}
        (copy,) = driver.read("copies")
        assert copy.key == key
        assert ("__key_schema_id" in copy.headers) == (schema_in == "header")


@pytest.mark.parametrize("of_key", [json_schema_key, protobuf_key])
def test_invalid_keys_are_dead_letters(of_key: Format) -> None:
    pipeline = Pipeline("keyed")
    pipeline.stream("totals", value=str, key=of_key(Place)).group_by_key().count(store="counts")
    with TopologyTestDriver(pipeline) as driver:
        for key in (b"no id", b"\0\0\0\0\x09{}", b"\0\0\0\0\1\xff\xff"):
            driver.pipe("totals", "x", key=key)
        letters = driver.dead_letters()
    assert [letter.headers["sluice.reason"] for letter in letters] == ["key"] * 3
    details = [str(letter.headers["sluice.detail"]) for letter in letters]
    assert "not with a zero byte" in details[0]
    assert "the registry has no schema 9" in details[1]
    assert "by schema 1 (totals-key, version 1)" in details[2]


def test_keys_of_protobuf_are_read_without_a_class() -> None:
    written = Pipeline("written")
    read = written.stream("totals", value=str, key=protobuf_key(subject="places"))
    read.group_by_key().count(store="counts")
    with TopologyTestDriver(written) as driver:
        driver.registry.register(
            "places", 'syntax = "proto3"; message Place { string country = 1; }', "PROTOBUF"
        )
        driver.pipe("totals", "x", key={"country": "DE"})
        assert driver.store("counts") == {'{"country":"DE"}': 1}
