"""Writes Arrow values as JSON, as Spark does with the options of `values.sql_text.struct_json`."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.arrow_values import bytes_of, map_present
from sluice.sql.types import PLAIN_SCALE
from sluice.values.json_text import ESCAPES

_ISO = "%Y-%m-%dT%H:%M:%SZ"
_FIRST_PLAIN = 32
"""In strings, JSON escapes the characters whose code is smaller than this."""
_Part: TypeAlias = Any
"""A part of the JSON of several values: an array with a text for each value, or one text for all
values.

Parts are joined only once, because each copy of many short texts takes time.
"""


def json_values(values: pa.Array) -> pa.Array:
    """Return the values as JSON; null is `null`."""
    return _joined(_parts(values))


def json_object(fields: Mapping[str, pa.Array]) -> pa.Array:
    """Write objects of these fields as JSON."""
    return _joined(_parts_of_object(fields))


def json_array(columns: Sequence[pa.Array]) -> pa.Array:
    """Write for each row an array of the row's values as JSON."""
    parts: list[_Part] = []
    for place, values in enumerate(columns):
        parts.append("," if place else "[")
        parts += _parts(values)
    return _joined([*parts, "]"])


def _parts(values: pa.Array) -> list[_Part]:
    """Return the parts of the values' JSON."""
    parts = _parts_of_present(values)
    if not values.null_count:
        return parts
    return [pc.if_else(values.is_valid(), _joined(parts), "null")]


def _parts_of_present(values: pa.Array) -> list[_Part]:
    """Return the parts of the JSON of the values that are not null."""
    kind = values.type
    if pa.types.is_string(kind):
        return ['"', _escaped(values), '"']
    if pa.types.is_timestamp(kind):
        return ['"', pc.strftime(values, _ISO), '"']
    if pa.types.is_date(kind):
        return ['"', values.cast(pa.string()), '"']
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return _parts_of_object(dict(zip(names, values.flatten(), strict=True)))
    if pa.types.is_list(kind):
        return ["[", _joined_elements(values, json_values(values.flatten())), "]"]
    if pa.types.is_map(kind):
        return ["{", _entries(values), "}"]
    if pa.types.is_binary(kind):
        return ['"', map_present(_in_base64, values), '"']
    if pa.types.is_floating(kind):
        return [map_present(java_text, values)]
    if pa.types.is_decimal(kind) and kind.scale > PLAIN_SCALE:
        return [map_present(str, values)]
    return [values.cast(pa.string())]


def _parts_of_object(fields: Mapping[str, pa.Array]) -> list[_Part]:
    parts: list[_Part] = []
    for place, (name, values) in enumerate(fields.items()):
        before = "," if place else "{"
        parts.append(f"{before}{json.dumps(name, ensure_ascii=False)}:")
        parts += _parts(values)
    return [*parts, "}"]


def _in_base64(content: bytes) -> str:
    return b64encode(content).decode()


def _joined(parts: Sequence[_Part]) -> pa.Array:
    """Join the parts of each value's JSON to one text. At least one of the parts is an array."""
    joined: list[_Part] = []
    for part in parts:
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    if len(joined) > 1:
        return pc.binary_join_element_wise(*joined, "")
    return joined[0]


def java_text(number: float) -> str:
    """Format a double as Java does.

    Only 0, and numbers from 0.001 to below 10 million, have no exponent.
    """
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    mantissa = "".join(map(str, digits)).rstrip("0")
    # Java writes at least two digits, and chooses those nearest to the number: 4.9E-324, where
    # Python writes 5e-324.
    if len(mantissa) == 1:
        mantissa = f"{abs(number):.1e}"[:3].replace(".", "")
    power = len(digits) + int(exponent) - 1
    return f"{'-' * sign}{mantissa[0]}.{mantissa[1:]}E{power}"


def _entries(maps: pa.Array) -> pa.Array:
    """Return the JSON of the entries of each map, without the braces."""
    pair = pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])
    lists = maps.cast(pa.list_(pair))
    names, items = lists.flatten().flatten()
    return _joined_elements(lists, _joined(['"', _escaped(names), '":', *_parts(items)]))


def _joined_elements(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """Return the JSON of the elements of each list, without the brackets.

    `elements` is the JSON of all elements.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    texts = pa.ListArray.from_arrays(pa.array(offsets), elements)
    return pc.binary_join(texts, ",")


def _escaped(texts: pa.Array) -> pa.Array:
    # Escaping in Python is slow, so do it only if a text has a special character.
    characters = bytes_of(texts)
    is_special = (characters < _FIRST_PLAIN) | (characters == ord('"')) | (characters == ord("\\"))
    if not is_special.any():
        return texts
    return map_present(lambda text: text.translate(ESCAPES), texts)
