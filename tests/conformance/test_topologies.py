"""A sample of `make topologies`: results of random chains of operators do not depend on batches, nor on replays."""

from __future__ import annotations

import pytest

from tests.conformance.topologies import trial


@pytest.mark.timeout(600)
def test_random_chains_have_the_same_results_in_any_batches_and_when_replayed() -> None:
    assert trial([1, 2], operators=4) == []
