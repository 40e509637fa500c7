"""Turns Arrow arrays of keys into texts, with the same result as `values.keys.key_text`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.arrow_casts import date_text, time_text
from sluice.sql.arrow_values import mask_of
from sluice.sql.types import PLAIN_SCALE, is_decimal
from sluice.support.arrays import Mask
from sluice.values.keys import key_text
from sluice.values.record_metadata import MOST_KEY_BYTES
from sluice.values.sql_types import precision_and_scale


def key_texts(values: pa.Array, kind: str) -> pa.Array:
    """Return the text of each key; null for a key with NaN or infinity."""
    match kind:
        case "STRING":
            return values
        case "DATE":
            return date_text(values)
        case "TIMESTAMP":
            return time_text(values)
        case "BOOLEAN" | "INT" | "BIGINT":
            return values.cast(pa.string())
    if is_decimal(kind) and (scale := precision_and_scale(kind)[1]) <= PLAIN_SCALE:
        text = values.cast(pa.string())
        if scale:
            return pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
        return text
    return pa.array([_text(value) for value in _plain_values(values)], pa.string())


def _plain_values(values: pa.Array) -> list[Any]:
    """Return the values as Python values, with maps as dicts."""
    python_values: list[Any] = values.to_pylist(maps_as_pydicts="strict")
    return python_values


def _text(value: Any) -> str | None:
    try:
        return key_text(value)
    # The value contains NaN or infinity, so it cannot be a key.
    except ValueError:
        return None


def too_long(texts: pa.Array) -> Mask:
    """Return a mask of the keys with too many bytes."""
    return mask_of(pc.greater(pc.binary_length(texts), MOST_KEY_BYTES), len(texts))
