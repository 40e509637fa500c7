"""Arrow values as JSON, in the same form as Spark's `to_json` with the options of `values.sql.TO_JSON`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    else:
        text = values.cast(pa.string())
    return pc.fill_null(text, "null")


def json_object(fields: Mapping[str, pa.Array]) -> pa.Array:
    """Objects of these fields as JSON."""
    parts: list[Any] = []
    for place, (name, values) in enumerate(fields.items()):
        parts += [f"{',' if place else '{'}{json.dumps(name, ensure_ascii=False)}:", json_values(values)]
    return pc.binary_join_element_wise(*parts, "}", "")


def _json_list(values: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), json_values(values.flatten()))
    text = pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")
    return pc.if_else(values.is_valid(), text, pa.scalar(None, pa.string()))


def _quoted(texts: pa.Array) -> pa.Array:
    special = pc.match_substring_regex(texts, _NOT_PLAIN)
    if pc.any(special).as_py():
        texts = pa.array([None if text is None else text.translate(ESCAPES) for text in texts.to_pylist()], pa.string())
    return pc.binary_join_element_wise('"', texts, '"', "")
