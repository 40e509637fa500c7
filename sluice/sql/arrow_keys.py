"""The text of keys on Arrow, with the same result as `values.keys.key_text`."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.arrow_casts import date_text, time_text
from sluice.sql.arrow_values import Mask, mask_of
from sluice.sql.types import PLAIN_SCALE, is_decimal, precision_and_scale
from sluice.values.keys import key_text
from sluice.values.records import MOST_KEY_BYTES


def key_texts(values: pa.Array, kind: str) -> pa.Array:
    """The text of each key; null for NaN and infinity."""
    match kind:
        case "STRING":
            return values
        case "DATE":
            return date_text(values)
        case "TIMESTAMP":
            return time_text(values)
        case "DOUBLE":
            return pa.array([_double_key(value) for value in values.to_pylist()], pa.string())
    if not is_decimal(kind) or not (scale := precision_and_scale(kind)[1]):
        return values.cast(pa.string())
    if scale > PLAIN_SCALE:
        return pa.array([None if value is None else key_text(value) for value in values.to_pylist()], pa.string())
    return pc.utf8_rtrim(pc.utf8_rtrim(values.cast(pa.string()), "0"), ".")


def _double_key(value: Any) -> str | None:
    return None if value is None or not math.isfinite(value) else key_text(value)


def too_long(texts: pa.Array) -> Mask:
    """The keys with too many bytes."""
    return mask_of(pc.greater(pc.binary_length(texts), MOST_KEY_BYTES), len(texts))
