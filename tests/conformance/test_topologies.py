"""A sample of `make topologies`: results of random chains of operators do not depend on batches, nor on replays."""

from __future__ import annotations

import pytest

from tests.conformance.topologies import Trial


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", [[9], pytest.param([9, 10, 11, 12], marks=pytest.mark.heavy)])
def test_random_chains_have_the_same_results_in_any_batches_and_when_replayed(seeds: list[int]) -> None:
    assert Trial(seeds, operators=12).differences() == []
