"""Values of random contracts of every kind are read back as they were written, as rows and as columns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, TypedDict

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, create_model
from pydantic.alias_generators import to_camel

from sluice import Decimal2, Pipeline
from sluice.engine.read.decode import ValueDecoder
from sluice.operators.encoding import Declared, encode_state, state_decoder, state_type
from sluice.plan import plan
from sluice.sql.arrow_from_json import array_of_json
from sluice.sql.arrow_to_json import json_values
from sluice.sql.arrow_types import arrow_type
from sluice.values.contracts import sql_type
from sluice.values.json_text import plain_json
from sluice.values.stored_values import value_decoder


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


Values = st.SearchStrategy[Any]
_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=5)
_TIMES = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)).map(
    lambda time: time.replace(tzinfo=UTC)
)
_SIMPLE: list[tuple[Any, Values]] = [
    (int, st.integers(-(2**63), 2**63 - 1)),
    (str, _TEXTS),
    (
        float,
        st.floats(allow_nan=False, allow_infinity=False).filter(
            lambda number: math.copysign(1, number) > 0
        ),
    ),
    (bool, st.booleans()),
    (datetime, _TIMES),
    (date, st.dates(date(1, 1, 2), date(9998, 1, 1))),
    (Decimal2, st.decimals(Decimal("-9999999999.99"), Decimal("9999999999.99"), places=2)),
    (Colour, st.sampled_from(Colour)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
]


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXTS, inner, max_size=2),
    max_leaves=4,
)
_SIMPLE.append((Any, _JSON))


def _struct(fields: Mapping[str, Any]) -> Any:
    return msgspec.defstruct(
        "Made", [*fields.items()], kw_only=True, rename="camel", module=__name__
    )


def _dataclass(fields: Mapping[str, Any]) -> Any:
    return dataclasses.make_dataclass("Made", [*fields.items()], namespace={"__module__": __name__})


def _typed_dict(fields: Mapping[str, Any]) -> Any:
    return TypedDict("Made", fields)  # type: ignore[operator]


def _model(fields: Mapping[str, Any]) -> Any:
    config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    required: Any = {name: (kind, ...) for name, kind in fields.items()}
    return create_model("Made", __config__=config, __module__=__name__, **required)


def _dictionaries(values: Values) -> Values:
    return st.dictionaries(_TEXTS, values, max_size=2)


def _contracts(make: Callable[[Mapping[str, Any]], Any]) -> st.SearchStrategy[tuple[Any, Values]]:
    """Contracts with fields, lists, dicts and nested contracts, each with a strategy of its values."""

    def nest(inner: st.SearchStrategy[tuple[Any, Values]]) -> st.SearchStrategy[tuple[Any, Values]]:
        return st.one_of(
            inner.map(
                lambda pair: (list.__class_getitem__(pair[0]), st.lists(pair[1], max_size=2))
            ),
            inner.map(
                lambda pair: (dict.__class_getitem__((str, pair[0])), _dictionaries(pair[1]))
            ),
            inner.map(lambda pair: (pair[0] | None, st.none() | pair[1])),
            st.lists(inner, min_size=1, max_size=3).map(contract),
        )

    def contract(pairs: list[tuple[Any, Values]]) -> tuple[Any, Values]:
        named = {f"field_{number}": pair for number, pair in enumerate(pairs)}
        made = make({name: kind for name, (kind, _) in named.items()})
        values = {name: strategy for name, (_, strategy) in named.items()}
        return made, st.fixed_dictionaries(values).map(lambda fields: made(**fields))

    parts = st.recursive(st.sampled_from(_SIMPLE), nest, max_leaves=6)
    return st.lists(parts, min_size=1, max_size=4).map(contract)


@pytest.mark.parametrize("make", [_struct, _dataclass, _typed_dict, _model])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_value_is_read_back_as_it_was_written(
    make: Callable[[Mapping[str, Any]], Any], data: st.DataObject
) -> None:
    contract, strategy = data.draw(_contracts(make))
    values = data.draw(st.lists(strategy, min_size=1, max_size=3))
    declared, decode = Declared(contract), value_decoder(contract)
    texts = [declared.json(value) for value in values]
    assert [decode(text) for text in texts] == values
    assert [declared.json(decode(text)) for text in texts] == texts
    kept = state_decoder(state_type(contract))
    assert [kept(encode_state(value)) for value in values] == values

    pipeline = Pipeline("made")
    pipeline.stream("made", value=contract).to("copies")
    (source,) = plan(pipeline).job.streams
    decoder = ValueDecoder(source)
    rows, read, dead_letters = decoder.decode([plain_json(text).encode() for text in texts])
    assert (rows, dead_letters) == ([*range(len(values))], [])
    columns = decoder.columns.json(read)
    assert columns == json_values(array_of_json(pa.array(texts), arrow_type(sql_type(contract))))
    assert [decode(text) for text in columns.to_pylist()] == values
