"""A shard is copied in pages while it is in use.

An interrupted copy continues, and has the same state in the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from sluice.errors import DamagedState, Refused, StateError
from sluice.state.model import NO_WINDOW, GenerationRef
from sluice.state.remote.copying import ShardCopy
from sluice.state.shard import pages
from sluice.state.shard.addresses import location
from sluice.state.shard.answer_rows import RecordedAnswer
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.operator_states import State
from sluice.state.shard.shard import Shard
from tests.support.state_rows import write_rows

KEYS = [f"key {number}" for number in range(30)]
OPERATOR = 3


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE", 7)


class Source:
    """A shard in use: each batch changes, adds and removes some keys and some operator states."""

    def __init__(self, database: str, name: str = "source", seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.shard = LocalShard.create(location(database, GenerationRef(name, 1), 0))
        self.batch = -1

    def write(self, batches: int = 1) -> None:
        """Write the next batches."""
        for _ in range(batches):
            self.batch += 1
            self.repeat()

    def repeat(self) -> None:
        """Write the newest batch again, with other rows, as after a crash."""
        chosen = self.chance.sample(KEYS, 12)
        values = [
            None if self.chance.random() < 0.3 else f"[{self.chance.random()}]" for _ in chosen
        ]
        rows = [
            (0, key, NO_WINDOW, NO_WINDOW, value) for key, value in zip(chosen, values, strict=True)
        ]
        write_rows(self.shard, self.batch, rows)
        before = self.shard.read_states(OPERATOR, chosen, self.batch, 0)
        replaced = {key: state.version for key, state in before.items()}
        states = [
            State(OPERATOR, key, b"%d" % self.chance.randrange(999), replaces=replaced.get(key))
            for key in chosen
        ]
        self.shard.write_states(self.batch, [OPERATOR], states, 0)

    def compact(self) -> None:
        """Remove the versions that only older snapshots show, as retention does."""
        self.shard.compact(self.batch - 1)


def content(shard: Shard, batch: int) -> tuple[object, ...]:
    """What a shard has at its newest batch, all of which is intact."""
    shard.verify_rows(batch)
    shard.verify_states(batch)
    rows = [(row.key, row.value) for row in shard.scan(0, batch, limit=99)]
    states = {
        key: state.data for key, state in shard.read_states(OPERATOR, KEYS, batch + 1, 0).items()
    }
    return rows, states, shard.checksums(batch)


class Interrupted(StateError):
    pass


def interrupting(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let copying fail after some pages."""
    left = [after]

    def failing(absorb: Callable[[LocalShard, Iterable[object]], None]) -> Callable[..., None]:
        def page(shard: LocalShard, versions: Iterable[object]) -> None:
            if not left[0]:
                raise Interrupted("The network was cut off.")
            left[0] -= 1
            absorb(shard, versions)

        return page

    for name in ("absorb_rows", "absorb_states"):
        monkeypatch.setattr(LocalShard, name, failing(getattr(LocalShard, name)))


@pytest.mark.parametrize(
    "after",
    [
        number if number % 3 == 0 else pytest.param(number, marks=pytest.mark.heavy)
        for number in range(12)
    ],
)
def test_an_interrupted_copy_continues_and_ends_as_its_source(
    after: int, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, place = Source(database, seed=after), location(database, GenerationRef("copy", 1), 0)
    source.write(4)
    with monkeypatch.context() as patch:
        interrupting(patch, after)
        with pytest.raises(Interrupted), ShardCopy(source.shard, place) as copy:
            copy.fill(stop_writers=source.repeat)  # between the two parts of a copy
    source.repeat()  # a run goes on meanwhile
    source.write(2)
    source.compact()
    with ShardCopy(source.shard, place) as copy:
        copy.fill()
        assert content(copy.target, source.batch) == content(source.shard, source.batch)
        with pytest.raises(Refused, match="moved away"):
            write_rows(copy.target, 9, [])


def test_a_copy_has_the_recorded_answers_and_forgets_what_its_source_forgets(database: str) -> None:
    source, place = Source(database), location(database, GenerationRef("copy", 1), 0)
    for batch in range(3):
        source.write()
        new = [
            RecordedAnswer(
                "score", f"{batch}-{number}", "a\0b", batch * 100, batch, error=f"\0{number}"
            )
            for number in range(10)
        ]
        source.shard.write_answers(new, 0, forget={"score": (batch - 1) * 100})
        with ShardCopy(source.shard, place) as copy:
            copy.fill()
            assert copy.target.answers(None, 99) == source.shard.answers(None, 99)
    assert len(source.shard.answers(None, 99)) == 20


def test_only_what_is_missing_is_copied(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, place = Source(database), location(database, GenerationRef("copy", 1), 0)
    source.write(4)
    with monkeypatch.context() as patch:
        interrupting(patch, 3)
        with pytest.raises(Interrupted), ShardCopy(source.shard, place, until=3) as copy:
            copy.fill()
    first = copy.versions
    with ShardCopy(source.shard, place, until=3) as copy:
        copy.fill(source.shard.checksums(3))
        second = copy.versions
    with ShardCopy(
        source.shard, location(database, GenerationRef("other", 1), 0), until=3
    ) as other:
        other.fill()
        assert (first, first + second) == (3 * 7, other.versions)
    source.write()
    for copied in (True, False):  # the newest batch, and then nothing
        with ShardCopy(source.shard, place, until=4) as copy:
            copy.fill(source.shard.checksums(4))
            assert (0 < copy.versions <= 24) == copied
            assert content(copy.target, 4) == content(source.shard, 4)
            assert not copy.why_replaced


def test_published_batches_are_copied_once_while_the_source_is_in_use(database: str) -> None:
    source, held = Source(database), list[int]()
    source.write(3)

    def hold() -> None:
        held.append(copy.versions)
        source.write()  # the last batch before the source is sealed

    with ShardCopy(
        source.shard, location(database, GenerationRef("copy", 1), 0), settled=2
    ) as copy:
        copy.fill(stop_writers=hold)
        assert held[0] < copy.versions <= held[0] + 24
        assert content(copy.target, 3) == content(source.shard, 3)
    with ShardCopy(
        source.shard, location(database, GenerationRef("other", 1), 0), settled=3
    ) as other:
        other.fill(stop_writers=lambda: held.append(other.versions))
        assert held[1] == other.versions


def test_a_copy_as_of_a_snapshot_lacks_later_batches(database: str) -> None:
    source = Source(database)
    source.write(3)
    before = content(source.shard, 2)
    source.write()
    with ShardCopy(source.shard, location(database, GenerationRef("copy", 1), 0), until=2) as copy:
        copy.fill()
        assert copy.target.checksums(9) == before[2]
        assert content(copy.target, 2)[0] == before[0]
        assert {entry.batch for entry in copy.target.journal().batches} <= {0, 1, 2}


@pytest.mark.parametrize("finished", [True, False])
def test_a_copy_of_another_shard_is_replaced(
    finished: bool, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, another = Source(database), Source(database, "another", seed=7)
    place, replaced = location(database, GenerationRef("copy", 1), 0), []
    for each in (source, another):
        each.write(3)
    with monkeypatch.context() as patch:
        if not finished:
            interrupting(patch, 4)
        try:
            with ShardCopy(another.shard, place) as copy:
                copy.fill()
        except Interrupted:
            assert not finished
    with ShardCopy(source.shard, place) as copy:
        copy.fill(before_replacing=lambda: replaced.append(True))
        assert content(copy.target, 2) == content(source.shard, 2)
        assert copy.why_replaced.startswith("The shard is damaged")
    assert replaced


def test_a_source_that_is_not_as_published_is_not_copied(database: str) -> None:
    source, another = Source(database), Source(database, "another", seed=7)
    for each in (source, another):
        each.write(3)
    released: list[bool] = []
    with (
        ShardCopy(source.shard, location(database, GenerationRef("copy", 1), 0), until=2) as copy,
        pytest.raises(DamagedState, match="checksum"),
    ):
        copy.fill(another.shard.checksums(2), let_write=lambda: released.append(True))
    assert released == [True]


def test_a_shard_in_use_is_not_filled(database: str) -> None:
    source, another = Source(database), Source(database, "another")
    for each in (source, another):
        each.write()
    with pytest.raises(Refused, match="already has a shard here"):
        ShardCopy(source.shard, location(database, GenerationRef("another", 1), 0))
    assert content(another.shard, 0)
