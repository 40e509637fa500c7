"""Local and remote shards have the same protocol: one test over a file and through a state server."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import DamagedState, LeaseError, Refused
from sluice.state.model import NO_WINDOW, GenerationRef, StateRow
from sluice.state.remote.opening import create_shard, drop_shard, open_shard
from sluice.state.remote.remote_shard import RemoteShard
from sluice.state.shard.addresses import location
from sluice.state.shard.answer_rows import Answer
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.operator_states import State
from sluice.state.shard.ranges import Range
from sluice.state.shard.shard import Checksums, Journal, RowCounts, Shard
from tests.servers.hosts import Host
from tests.support.state_rows import ids_of, write_rows

REF = GenerationRef("orders", 1)


@pytest.fixture(params=["local", "remote"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return location(f"sqlite:///{tmp_path}/local", REF, 0)
    hosts: list[Host] = request.getfixturevalue("hosts")
    return hosts[0].options.place("orders", 0).shard(REF)


def test_local_and_remote_shards_behave_alike(address: str, tmp_path: Path) -> None:
    kind: type[Shard] = RemoteShard if address.startswith("http") else LocalShard
    with create_shard(address) as shard:
        assert isinstance(shard, kind)
        empty = shard.begin_run(1, -1)
        assert (
            write_rows(
                shard,
                0,
                [(0, "a", -1, -1, "[1]"), (0, "b", -1, -1, "[2]"), (1, "a", 0, 1_000, "[3]")],
                1,
            )
            == 3
        )
        shard.write_states(0, [7], [State(7, "a", b"first", due=500), State(7, "b", b"other")], 1)
        ids = ids_of([(0, "", -1, -1), (0, "a", -1, -1), (0, "c", -1, -1)])
        ((place, (*before, digest)),) = shard.rows_before(1, ids, 1).items()
        assert place == 1
        assert tuple(before) == (0, "a", -1, -1, "[1]")
        assert write_rows(shard, 1, [(0, "a", -1, -1, "[10]")], 1, replaced=lambda: digest) == 1
        shard.expire_windows(1, {1: 2_000}, 1)

        assert shard.scan(0, 0, limit=1) == [StateRow(0, "a", NO_WINDOW, NO_WINDOW, "[1]")]
        assert shard.scan(0, 1, Range(prefix="a"), checked=True) == [
            StateRow(0, "a", NO_WINDOW, NO_WINDOW, "[10]")
        ]
        assert shard.scan(0, 1, after=("a", NO_WINDOW, NO_WINDOW)) == [
            StateRow(0, "b", NO_WINDOW, NO_WINDOW, "[2]")
        ]
        assert [len(shard.scan(1, batch)) for batch in (0, 1)] == [1, 0]

        states = shard.read_states(7, ["a", "b", "c"], 1, 1)
        assert {key: state.data for key, state in states.items()} == {"a": b"first", "b": b"other"}
        assert shard.due_keys(7, 500, 1, 1) == ["a"]
        assert shard.due_keys(7, 499, 1, 1) == []

        sums = shard.checksums(1)
        assert sums.state_rows != empty.state_rows
        shard.verify_rows(1, sums)
        shard.verify_states(1, sums)
        with pytest.raises(DamagedState):
            shard.verify_rows(1, Checksums("00ff", sums.states))

        assert shard.begin_run(2, 1) == sums
        with pytest.raises(LeaseError):
            write_rows(shard, 2, [], 1)
        assert shard.journal().epoch == 2
        assert [(entry.operator, entry.batch) for entry in shard.journal().batches] == [
            (-1, 0),
            (7, 0),
            (-1, 1),
        ]

        moved = f"sqlite:///{tmp_path}/copy.sqlite"
        with create_shard(moved, anew=True) as copy:
            copy.absorb_rows(shard.row_versions(0, None, 100))
            copy.absorb_states(shard.state_versions(0, None, 100))
            copy.replace_journal(2, shard.journal())
            copy.verify_states(1, sums)
            copy.seal(sealed=False)
            copy.verify_rows(1, sums)
            assert copy.scan(0, 1) == shard.scan(0, 1)

        assert shard.row_counts() == RowCounts({0: 3, 1: 2}, {7: 2})
        assert shard.compact(1) == 3  # the first version of a, the window and its tombstone
        assert shard.scan(0, 1) == open_and_scan(moved)
        shard.seal()
        with pytest.raises(Refused, match="moved away"):
            write_rows(shard, 2, [], 2)
        shard.absorb_rows([])
        shard.replace_journal(0, Journal(2, []))
        assert shard.scan(0, 1) == []
    for _ in range(2):  # dropping a shard that does not exist changes nothing
        drop_shard(address)
        with pytest.raises(DamagedState):
            open_shard(address)


def open_and_scan(address: str) -> list[StateRow]:
    with open_shard(address) as shard:
        return shard.scan(0, 1)


def test_answers_belong_to_no_batch(address: str) -> None:
    """A run that begins removes the batches that were not published, and keeps the answers that they have recorded."""
    first, other = (
        Answer("score", "1", "a", 100, 0, "7"),
        Answer("other", "1", "a", 100, 0, error="refused"),
    )
    with create_shard(address) as shard:
        assert shard.read_answers("score", ["1"], 0) == []
        shard.begin_run(1, -1)
        shard.write_states(0, [7], [State(7, "a", b"state")], 1)
        shard.write_answers([first, other], 1)
        shard.begin_run(2, -1)
        assert shard.read_states(7, ["a"], 1, 2) == {}
        assert shard.read_answers("score", ["1", "2"], 2) == [first]
        # Another attempt of the task has called, too. The first answer stays.
        shard.write_answers(
            [Answer("score", "1", "a", 100, 0, "8"), Answer("score", "2", "b", 200, 1)], 2
        )
        assert shard.read_answers("score", ["1"], 2) == [first]
        with pytest.raises(LeaseError):
            shard.write_answers([Answer("score", "3", "a", 300, 1)], 1)
        with pytest.raises(LeaseError):
            shard.read_answers("score", ["1"], 1)
        assert shard.answers(None, 2) == [other, first]
        assert [answer.id for answer in shard.answers((100, "score", "1"), 9)] == ["2"]
        shard.write_answers([], 2, forget={"score": 150})
        assert [(answer.step, answer.id) for answer in shard.answers(None, 9)] == [
            ("other", "1"),
            ("score", "2"),
        ]
        assert shard.last_places().answer == 200
        shard.forget_failures(1, 2)
        assert len(shard.answers(None, 9)) == 2
        shard.forget_failures(0, 2)
        assert [answer.step for answer in shard.answers(None, 9)] == ["score"]
    drop_shard(address)
