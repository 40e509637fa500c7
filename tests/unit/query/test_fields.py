"""The fields of stored values, from Spark's type names."""

from __future__ import annotations

import pytest

from sluice.query.fields import UnknownField, require_field
from sluice.state.model import StoreInfo
from sluice.values.field_paths import names_of

pytestmark = pytest.mark.unit

SPARKS = "struct<city:string,at:struct<`a.b`:bigint,lines:array<struct<price:decimal(12,2)>>>,more:map<string,int>>"
OURS = "STRUCT<`city`: STRING, at: STRUCT<lat: DOUBLE>, `of ``x``, <y>`: INT>"


def store(value: str) -> StoreInfo:
    return StoreInfo(
        pipeline="p", name="s", kind="key-value", group_id=0, store_column=0, key="k", value=value
    )


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (SPARKS, ""),
        (SPARKS, "city"),
        (SPARKS, "at.lines"),
        (SPARKS, "more.anything"),
        (OURS, "at.lat"),
        (OURS, "of `x`, <y>"),
        ("map<string,struct<a:int>>", "x.a"),
        ("", "anything"),
        ("variant", "anything"),
        ("STRUCT<...>", "anything"),
    ],
)
def test_existing_and_possible_fields(value: str, path: str) -> None:
    require_field(store(value), "field", path)


@pytest.mark.parametrize(
    ("value", "path", "next_step"),
    [
        (SPARKS, "town", "Its fields are: city, at, more."),
        (SPARKS, "CITY", "Its fields are: city, at, more."),
        (SPARKS, "city.name", "city has the type string, which has no fields."),
        (SPARKS, "at.lon", "Its fields are: a.b, lines."),
        (OURS, "at.lon", "Its fields are: lat."),
        ("BIGINT", "count", "The values have no fields: omit the parameter."),
        ("decimal(38,2)", "count", "The values have no fields: omit the parameter."),
        ("array<struct<a:int>>", "a", "The values have no fields: omit the parameter."),
    ],
)
def test_missing_fields(value: str, path: str, next_step: str) -> None:
    with pytest.raises(
        UnknownField, match=r"^group_by: the values of store 's' have no field"
    ) as refused:
        require_field(store(value), "group_by", path)
    assert refused.value.next_step == next_step


def test_a_field_name_with_a_dot_is_not_a_path() -> None:
    with pytest.raises(UnknownField) as refused:
        require_field(store(SPARKS), "field", "at.a.b")
    assert "write the field 'a.b' in backticks" in refused.value.next_step
    require_field(store(SPARKS), "field", "at.`a.b`")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("", ()),
        ("order-id", ("order-id",)),
        ("a.b", ("a", "b")),
        ("`a.b`", ("a.b",)),
        ("x.`a.b`.c", ("x", "a.b", "c")),
        ("`a``b.c`", ("a`b.c",)),
        ("of `x`, <y>", ("of `x`, <y>",)),
        ("`open", ("`open",)),
        ("a.", ("a", "")),
    ],
)
def test_names_in_a_path(path: str, names: tuple[str, ...]) -> None:
    assert names_of(path) == names
