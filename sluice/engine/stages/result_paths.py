"""The paths of many results at once. `values.row_order` has the same rules for a single path."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from sluice.operators.columns import ReleasedResults
from sluice.support.arrays import Indices, Integers
from sluice.values import row_order


def result_paths(causes: pa.Array, numbers: Indices, *, rekeyed: bool = False) -> pa.Array:
    """Return results' paths, made from each cause's path and the result's number for this cause."""
    parts = [causes, _result_elements(numbers)]
    if rekeyed:
        parts.insert(0, pa.scalar(row_order.after_rekeying(b"")))
    return _joined(*parts)


def release_paths(causes: pa.Array, results: ReleasedResults, *, before: bool) -> pa.Array:
    """Return the paths of results released before or after the rows that advance stream time.

    `causes`: the paths of these rows.
    """
    # Keys are few, because a key has several results. So make a path element for each key.
    keys = pc.replace_substring(
        results.key_texts.cast(pa.binary()), row_order.END_OF_TEXT, row_order.ESCAPED
    )
    elements_of_keys = _joined(keys, pa.scalar(row_order.END_OF_TEXT)).take(pa.array(results.keys))
    releases = _elements(results.ranks, lambda rank: row_order.release(rank, before=before))
    return _joined(causes, releases, elements_of_keys, _result_elements(results.numbers))


def _result_elements(numbers: Indices) -> pa.Array | pa.Scalar:
    return _elements(numbers, lambda number: row_order.result_path(b"", number))


def _elements(numbers: Integers, element: Callable[[int], bytes]) -> pa.Array | pa.Scalar:
    """Return the path element for each number, or a scalar if all elements are equal.

    Most results have the same few numbers.
    """
    encoded = pa.array(numbers).dictionary_encode()
    elements = pa.array([element(number) for number in encoded.dictionary.to_pylist()], pa.binary())
    if len(elements) == 1:
        return elements[0]
    return elements.take(encoded.indices)


def _joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b""))
