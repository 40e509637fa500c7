"""Paths in JSON and variants: those that Spark reads are accepted, all others refused when the file is loaded."""

from __future__ import annotations

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.errors import TopologyError

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


READ_IN_VARIANTS = [
    "$", "$.a", "$.a.b", "$['a']", '$["a"]', "$[0]", "$[0][1]", "$.*", "$. a", "$.a?b", "$['']", "$.größe", "$.a]",
    "$[2147483647]", "$.a\n",
]  # fmt: skip
REFUSED_IN_VARIANTS = [
    "", "a", "$a", "$.", "$..a", "$[*]", "$[ 0]", "$ .a", "$[-1]", " $.a", "$[a]", "$['a'", "$[2147483648]",
    "$[\u0663]", "$['a']b",
]  # fmt: skip


class Document(Struct):
    text: str
    path: str


@pytest.mark.parametrize("path", READ)
def test_a_path_that_spark_reads_is_accepted(path: str) -> None:
    documents = Pipeline("paths").stream("documents", value=Document)
    assert documents.select(a=call(path)).node.result_types == {"a": "STRING"}


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


@pytest.mark.parametrize("function", ["variant_get", "try_variant_get"])
def test_paths_in_variants_are_accepted_or_refused_as_in_spark(function: str) -> None:
    documents = Pipeline("paths").stream("documents", value=Document)
    for path in READ_IN_VARIANTS:
        documents.select(a=f"{function}(parse_json(text), {literal(path)}, 'INT')")
    for path in REFUSED_IN_VARIANTS:
        with pytest.raises(
            TopologyError, match=r"at test_json_paths\.py:\d+: .*not a path that Spark reads"
        ):
            documents.select(a=f"{function}(parse_json(text), {literal(path)}, 'INT')")


def test_a_path_may_come_from_the_record() -> None:
    Pipeline("paths").stream("documents", value=Document).select(a="get_json_object(text, path)")


def call(path: str) -> str:
    return f"get_json_object(text, {literal(path)})"


def literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
