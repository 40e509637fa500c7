"""A sample of `make topologies`: results of random chains of operators do not depend on the batches."""

from __future__ import annotations

import pytest

from tests.conformance.topologies import differences


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1])
def test_random_chains_have_the_same_results_in_one_batch_and_in_several(seed: int) -> None:
    assert differences([seed], 3, "random") == []
