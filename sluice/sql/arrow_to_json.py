"""Arrow values as JSON, in the same form as Spark's `to_json` with the options of `values.sql_text.struct_json`."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.types import PLAIN_SCALE
from sluice.values.json_text import ESCAPES

_ISO = "%Y-%m-%dT%H:%M:%SZ"
_NOT_PLAIN = '["\\\\\x00-\x1f]'
"""Characters that JSON escapes in a string."""


def json_values(values: pa.Array) -> pa.Array:
    """The values as JSON; null is `null`."""
    kind = values.type
    if pa.types.is_string(kind):
        text = _quoted(values)
    elif pa.types.is_timestamp(kind):
        text = pc.binary_join_element_wise('"', pc.strftime(values, _ISO), '"', "")
    elif pa.types.is_date(kind):
        text = pc.binary_join_element_wise('"', values.cast(pa.string()), '"', "")
    elif pa.types.is_struct(kind):
        fields = {kind.field(place).name: pc.struct_field(values, [place]) for place in range(kind.num_fields)}
        text = pc.if_else(values.is_valid(), json_object(fields), pa.scalar(None, pa.string()))
    elif pa.types.is_list(kind):
        text = _json_list(values)
    elif pa.types.is_map(kind):
        text = _json_map(values)
    elif pa.types.is_binary(kind):
        coded = [None if value is None else b64encode(value).decode() for value in values.to_pylist()]
        text = _quoted(pa.array(coded, pa.string()))
    elif pa.types.is_floating(kind):
        text = pa.array(
            [None if value is None else java_text(value) for value in values.to_pylist()],
            pa.string(),
        )
    elif pa.types.is_decimal(kind) and kind.scale > PLAIN_SCALE:
        text = pa.array(
            [None if value is None else str(value) for value in values.to_pylist()],
            pa.string(),
        )
    else:
        text = values.cast(pa.string())
    return pc.fill_null(text, "null")


def java_text(number: float) -> str:
    """A double as Java writes it. Only 0, and numbers from 0.001 to below 10 million, have no exponent."""
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    mantissa = "".join(map(str, digits)).rstrip("0")
    # Java writes at least two digits, and chooses the nearest ones: 4.9E-324, where Python writes 5e-324.
    if len(mantissa) == 1:
        mantissa = f"{abs(number):.1e}"[:3].replace(".", "")
    power = len(digits) + int(exponent) - 1
    return f"{'-' * sign}{mantissa[0]}.{mantissa[1:]}E{power}"


def json_object(fields: Mapping[str, pa.Array]) -> pa.Array:
    """Objects of these fields as JSON."""
    parts: list[Any] = []
    for place, (name, values) in enumerate(fields.items()):
        parts += [
            f"{',' if place else '{'}{json.dumps(name, ensure_ascii=False)}:",
            json_values(values),
        ]
    return pc.binary_join_element_wise(*parts, "}", "")


def _json_list(values: pa.Array) -> pa.Array:
    return _joined(values, json_values(values.flatten()), "[", "]")


def _json_map(values: pa.Array) -> pa.Array:
    pair = pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])
    lists = values.cast(pa.list_(pair))
    names, items = lists.flatten().flatten()
    return _joined(
        lists,
        pc.binary_join_element_wise(_quoted(names), json_values(items), ":"),
        "{",
        "}",
    )


def _joined(lists: pa.Array, elements: pa.Array, begin: str, end: str) -> pa.Array:
    """The JSON of lists; `elements` is the JSON of their elements, one after the other."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    texts = pa.ListArray.from_arrays(pa.array(offsets), elements)
    text = pc.binary_join_element_wise(begin, pc.binary_join(texts, ","), end, "")
    return pc.if_else(lists.is_valid(), text, pa.scalar(None, pa.string()))


def _quoted(texts: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(texts, _NOT_PLAIN)
    # Python, which is slower, escapes the texts only if one of them has a special character.
    if pc.any(special).as_py():
        texts = pa.array(
            [None if text is None else text.translate(ESCAPES) for text in texts.to_pylist()],
            pa.string(),
        )
    return pc.binary_join_element_wise('"', texts, '"', "")
