"""The paths of many results at once are the paths of each result."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.engine.stages.result_paths import release_paths, result_paths
from sluice.operators.columns import ReleasedResults
from sluice.values import row_order

pytestmark = pytest.mark.unit


@given(
    results=st.lists(
        st.tuples(
            st.binary(max_size=6),
            st.integers(-(2**60), 2**60),
            st.text(st.sampled_from("a\x00ü\x01")),
            st.integers(0, 300),
        )
    )
)
def test_columns_have_the_same_paths(results: list[tuple[bytes, int, str, int]]) -> None:
    causes = pa.array([cause for cause, *_ in results], pa.binary())
    keys = pa.array([key for _, _, key, _ in results], pa.string()).dictionary_encode()
    ranks, numbers = (np.array([each[column] for each in results], np.int64) for column in (1, 3))
    released = ReleasedResults(
        keys.dictionary,
        keys.indices.to_numpy(),
        ranks,
        ranks,
        numbers,
        ranks,
        pa.nulls(len(results), pa.string()),
    )
    for before in (False, True):
        paths: list[bytes] = []
        for cause, rank, key, number in results:
            paths.append(
                row_order.result_path(
                    row_order.release_path(cause, rank, key, before=before), number
                )
            )
        assert release_paths(causes, released, before=before).to_pylist() == paths
    for rekeyed in (False, True):
        begins = [row_order.after_rekeying(cause) if rekeyed else cause for cause, *_ in results]
        paths = [
            row_order.result_path(begin, each[3])
            for begin, each in zip(begins, results, strict=True)
        ]
        assert result_paths(causes, numbers, rekeyed=rekeyed).to_pylist() == paths
