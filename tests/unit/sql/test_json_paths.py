"""Paths of `get_json_object`: those that Spark reads are accepted, all others refused when the file is loaded."""

from __future__ import annotations

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.errors import TopologyError
from sluice.topology.value_types import types_after

READ = [
    "$", "$.a", "$.a.b", "$['a']", "$['a']['b']", "$[0]", "$[0][1]", "$[*]", "$.*", "$.*.*", "$['*']", "$.a[*].b",
    "$.a['b.c']", "$.a.*", "$.a b", "$. a", "$.a$", "$.a-b", "$.größe", "$.a]", '$."a"', "$[0].b", "$.a ", "$[' a']",
    "$ ['a']", "$ .*", "$[ 0]", "$.fb:testid", "$[9223372036854775807]", "$.a\n",
]  # fmt: skip
REFUSED = [
    "", "a", "$a", "$.", "$.a.", "$..a", "$..*", "$..[0]", "$.a..b", "$[", "$[]", "$['']", '$["a"]', "$[-1]", "$[0:1]",
    "$[0,1]", "$[?(@.a)]", "$[0 ]", "$[ *]", "$ .a", "$.[0]", "$.['a']", "$$", "@.a", " $.a", "$['a", "$.*b", "$[a]",
    "$[9223372036854775808]", "$['a\\'b']",
]  # fmt: skip


class Document(Struct):
    text: str
    path: str


@pytest.mark.parametrize("path", READ)
def test_a_path_that_spark_reads_is_accepted(path: str) -> None:
    documents = Pipeline("paths").stream("documents", value=Document)
    assert types_after(documents.select(a=call(path)).node) == {"a": "STRING"}


@pytest.mark.parametrize("path", REFUSED)
def test_another_path_is_refused_with_the_paths_that_spark_reads(path: str) -> None:
    documents = Pipeline("paths").stream("documents", value=Document)
    for step in (
        lambda: documents.select(a=call(path)),
        lambda: documents.filter(f"{call(path)} = 'x'"),
        lambda: documents.group_by_key().aggregate(store="s", a=f"max({call(path)})"),
    ):
        with pytest.raises(
            TopologyError,
            match=r"at test_json_paths\.py:\d+: .*not a path that Spark reads.*\.name",
        ):
            step()


def test_a_path_may_come_from_the_record() -> None:
    Pipeline("paths").stream("documents", value=Document).select(a="get_json_object(text, path)")


def call(path: str) -> str:
    literal = path.replace("\\", "\\\\").replace("'", "\\'")
    return f"get_json_object(text, '{literal}')"
