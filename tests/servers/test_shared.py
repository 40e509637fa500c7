"""What the processes of a state server share."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.server.latencies import Latencies, no_figures
from sluice.server.shared import ShardId, SharedShardIds, shared_among
from sluice.state.ledger.measurements import Labels
from sluice.state.model import GenerationRef

SHARDS = st.builds(
    lambda pipeline, generation, number: (GenerationRef(pipeline, generation), number),
    st.text("aB9_-", min_size=1, max_size=200),
    st.integers(0, 999_999_999),
    st.integers(0, 999_999_999),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "discard"]), SHARDS | st.just((GenerationRef("orders", 1), 0))
        )
    )
)
def test_shared_shard_ids_are_a_set(changes: list[tuple[str, ShardId]]) -> None:
    expected = set[ShardId]()
    with tempfile.TemporaryDirectory() as folder:
        shared, of_another_process = SharedShardIds(Path(folder)), SharedShardIds(Path(folder))
        for change, shard in changes:
            getattr(expected, change)(shard)
            getattr(shared, change)(shard)
            assert (shard in of_another_process) == (shard in expected)
        assert (set(of_another_process), len(of_another_process)) == (expected, len(expected))


def test_a_shared_set_survives_the_removal_of_its_folder() -> None:
    shard = GenerationRef("orders", 1), 0
    with shared_among(2) as shared:
        shared.arriving.add(shard)
        shared.remove()
        assert (list(shared.arriving), len(shared.arriving), shard in shared.arriving) == (
            [],
            0,
            False,
        )
        shared.arriving.discard(shard)
        shared.arriving.add(shard)
        assert list(shared.arriving) == [shard]
    assert list(shared.arriving) == []


def test_one_process_shares_nothing() -> None:
    with shared_among(1) as shared:
        assert isinstance(shared.arriving, set)
        assert len(shared.latencies) == 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["/local", "/sluice", "/v1"]),
            st.sampled_from([200, 304, 404, 503]),
            st.sampled_from([0.0, 0.1, 0.11, 7.0, 5_000.0]),
        )
    )
)
@example([(0, "/local", 200, 0.11), (1, "/local", 200, 0.1), (1, "/local", 200, 0.1)])
def test_latencies_add_up_the_figures_of_all_processes(
    answers: list[tuple[int, str, int, float]],
) -> None:
    figures = [no_figures() for _ in range(3)]
    processes = [Latencies(figures, number) for number in range(3)]
    one = Latencies([no_figures()])
    for number, prefix, status, seconds in answers:
        processes[number].add(prefix, status, seconds)
        one.add(prefix, status, seconds)
    expected = values(one)
    for process in processes:
        # The seconds are doubles, which the processes and `one` have added in different orders.
        assert values(process) == pytest.approx(expected)
    counted = sum(value for (name, _), value in expected.items() if name.endswith("_bucket"))
    assert counted == len(answers)


def values(latencies: Latencies) -> dict[tuple[str, Labels], float]:
    """The name and the labels of each measurement, and its value."""
    return {(name, labels): value for name, value, labels in latencies.measurements()}
