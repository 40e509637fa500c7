from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import DamagedState, LeaseError, SettingsError, StateError
from sluice.state.model import NO_WINDOW, GenerationRef, StateRow
from sluice.state.queries.worker_queries import Count, Scan
from sluice.state.shard import local_shard, postgres_driver
from sluice.state.shard.addresses import location, shards_of
from sluice.state.shard.checksums import NO_CHECKSUM, row_digest
from sluice.state.shard.local_shard import LocalShard
from sluice.state.shard.pages import pages_of_versions
from sluice.state.shard.ranges import RowRange
from sluice.state.shard.row_pages import columns_of, row_digests, sorted_rows
from sluice.state.shard.row_tuples import Row, RowId
from tests.support.postgres import new_database
from tests.support.state_rows import ids_of, page_of, write_rows

pytestmark = pytest.mark.unit


@pytest.fixture
def url(database: str) -> str:
    return location(database, GenerationRef("orders", 1), 0)


@pytest.fixture
def shard(url: str) -> LocalShard:
    return LocalShard.create(url)


def row(
    key: str, value: str | None, group_id: int = 0, window: int = NO_WINDOW
) -> tuple[int, str, int, int, str | None]:
    return group_id, key, window, window + 15_000 if window >= 0 else NO_WINDOW, value


def rows_before(shard: LocalShard, batch: int, ids: Sequence[RowId], epoch: int = 0) -> list[Row]:
    """The versions before a batch of the rows with these ids.

    Each version is in the place of its row.
    """
    before = shard.rows_before(batch, ids_of(ids), epoch)
    assert all(before[place][:4] == ids[place] for place in before)
    return [version[:5] for version in before.values()]


def test_each_batch_shows_its_own_state(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", "[1]"), row("b", "[1]")])
    write_rows(shard, 1, [row("a", "[2]")])
    write_rows(shard, 2, [row("a", None)])
    write_rows(shard, 3, [row("a", "[4]")])
    assert [shard.get(0, "a", as_of=batch) for batch in range(-1, 5)] == [
        None,
        "[1]",
        "[2]",
        None,
        "[4]",
        "[4]",
    ]
    assert [[group_id.key for group_id in shard.scan(0, batch)] for batch in range(4)] == [
        ["a", "b"],
        ["a", "b"],
        ["b"],
        ["a", "b"],
    ]
    assert [shard.count(0, batch) for batch in range(-1, 4)] == [0, 2, 2, 1, 2]
    assert shard.get(1, "a", as_of=3) is None


def test_a_writer_can_read_the_versions_before_its_batch(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", "[1]"), row("b", "[1]", window=0)])
    write_rows(shard, 1, [row("a", "[2]"), row("c", None)])
    write_rows(shard, 2, [row("a", "[3]")])
    windows = [
        ("a", NO_WINDOW, NO_WINDOW),
        ("b", 0, 15_000),
        ("b", 15_000, 30_000),
        ("c", NO_WINDOW, NO_WINDOW),
    ]
    names = [(0, *window) for window in windows]
    assert rows_before(shard, 0, names) == []
    assert rows_before(shard, 1, names) == [row("a", "[1]"), row("b", "[1]", window=0)]
    assert [version[4] for version in rows_before(shard, 2, names)] == ["[2]", "[1]"]


def test_a_batch_of_several_pages_is_one_batch(shard: LocalShard) -> None:
    batches = [[row(key, f"[{batch}]") for key in "cabed"] for batch in range(2)]
    for batch, rows in enumerate(batches):
        assert write_rows(shard, batch, rows) == 5
    checksums = [shard.checksum(batch) for batch in range(2)]
    rows = sorted(batches[1])
    pages = [page_of(rows[begin : begin + 2]) for begin in range(0, 5, 2)]
    assert shard.write_pages(1, pages) == 5, "the batch is repeated"
    assert [shard.checksum(batch) for batch in range(2)] == checksums
    assert shard.batches() == {0: 5, 1: 5}
    shard.verify_rows(1)


@pytest.mark.parametrize("between", [0, 1, 40])
def test_a_writer_can_read_the_versions_of_many_windows_of_a_key(
    shard: LocalShard, between: int
) -> None:
    windows = [start * 1_000 for start in range(0, 20 * (between + 1))]
    for batch in range(3):
        write_rows(
            shard,
            batch,
            [row(key, f"[{batch}]", 0, start) for key in ("a", "b") for start in windows],
        )
    write_rows(shard, 3, [row("a", None, 0, windows[0]), row("a", "[3]", 0, windows[-1])])
    # Windows of the batch, with others between them in the shard, and new ones.
    read = [
        (0, "a", start, start + 15_000)
        for start in [*windows[:: between + 1], windows[-1], windows[-1] + 1_000]
    ]
    expected = dict.fromkeys(windows[:: between + 1], "[2]") | {windows[-1]: "[3]"}
    del expected[windows[0]]
    versions = rows_before(shard, 4, sorted({*read}))
    assert {(key, start): value for _, key, start, _, value in versions} == {
        ("a", start): value for start, value in expected.items()
    }
    assert all(version[3] == version[2] + 15_000 for version in versions)


def test_only_rows_that_are_there_get_tombstones(shard: LocalShard) -> None:
    """A session that grows three times in a batch leaves two tombstones of bounds that were never published."""
    grown = [(0, "a", 5, 6, None), (0, "a", 5, 7, None), (0, "a", 5, 8, "[3]")]
    assert write_rows(shard, 0, grown) == 1
    assert (
        write_rows(shard, 1, [(0, "a", 5, 8, None), (0, "a", 5, 9, None), (0, "a", 5, 10, "[5]")])
        == 2
    )
    assert [(version.window_end, version.value) for version in shard.row_versions(1, None, 9)] == [
        (8, None), (10, "[5]"),
    ]  # fmt: skip
    assert write_rows(shard, 2, [(0, "a", 5, 8, None), (0, "a", 5, 10, "[5]")]) == 1, (
        "the row is gone already"
    )
    shard.verify_rows(2)


def test_what_a_writer_has_read_gives_the_same_checksum(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", "[1]"), row("b", "[1]")])
    changed = [row("a", "[2]"), row("c", "[2]")]
    write_rows(shard, 1, changed)
    checksum = shard.checksum(1)
    read = shard.rows_before(1, ids_of([row("a", None)[:4], row("c", None)[:4]]), epoch=0)
    write_rows(shard, 1, changed, replaced=lambda: sum(digest for *_, digest in read.values()))
    assert shard.checksum(1) == checksum
    shard.verify_rows(1)


def test_a_driver_without_the_lease_cannot_read_what_it_would_add_to(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", "[1]")], epoch=1)
    shard.begin_run(2, 0)
    with pytest.raises(LeaseError):
        rows_before(shard, 1, [row("a", None)[:4]], epoch=1)


def test_a_batch_written_again_replaces_itself(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", "[1]")])
    assert write_rows(shard, 1, [row("a", "[2]"), row("b", "[2]")]) == 2
    assert write_rows(shard, 1, [row("a", "[3]")]) == 1
    assert [group_id.value for group_id in shard.scan(0, 1)] == ["[3]"]
    assert shard.batches() == {0: 1, 1: 1}


def test_a_batch_is_written_atomically(shard: LocalShard, url: str) -> None:
    write_rows(shard, 0, [row("a", "[1]")])
    with pytest.raises(StateError):
        write_rows(shard, 1, [row("a", "[2]"), row("b", "[2]"), row("b", "[3]")])
    assert shard.batches() == {0: 1}
    assert LocalShard.open(url).scan(0, 9) == [StateRow(0, "a", NO_WINDOW, NO_WINDOW, "[1]")]
    write_rows(shard, 1, [row("a", "[2]")])


def test_windows_of_a_key_between_two_times(shard: LocalShard) -> None:
    starts = range(0, 75_000, 15_000)
    write_rows(
        shard, 0, [row(key, f"[{start}]", 1, start) for key in ("a", "b", "bb") for start in starts]
    )
    assert [group_id.window_start for group_id in shard.windows(1, "b", 0)] == [
        0,
        15_000,
        30_000,
        45_000,
        60_000,
    ]
    between = shard.windows(1, "b", 0, start=15_000, end=30_000)
    assert [(group_id.key, group_id.window_start, group_id.window_end) for group_id in between] == [
        ("b", 15_000, 30_000),
        ("b", 30_000, 45_000),
    ]
    assert [found.value for found in shard.windows(1, "bb", 0, start=45_000, end=45_000)] == [
        "[45000]"
    ]


def test_sessions_with_the_same_start_are_rows_of_their_own(
    shard: LocalShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session grows from [5, 7] to [5, 9].

    Group 0 has the sessions, group 1 all sessions ever sent.
    """
    write_rows(shard, 1, [(0, "a", 5, 7, "[1]"), (1, "a", 5, 7, "[1]")])
    write_rows(shard, 2, [(0, "a", 5, 7, None), (0, "a", 5, 9, "[2]"), (1, "a", 5, 9, "[1]")])
    write_rows(shard, 3, [(1, "a", 5, 9, "[2]")])
    found = [
        [(one.window_end, one.value) for one in shard.windows(group, "a", 3)] for group in (0, 1)
    ]
    assert found == [[(9, "[2]")], [(7, "[1]"), (9, "[2]")]]
    assert [(one.window_end, one.value) for one in shard.windows(0, "a", 1)] == [(7, "[1]")], (
        "an earlier snapshot"
    )
    assert [one.window_end for one in shard.scan(1, 3, after=("a", 5, 7))] == [9], (
        "a page can end between them"
    )
    ids = [(1, "a", 5, end) for end in (7, 8, 9)]
    assert rows_before(shard, 3, ids) == [(*ids[0], "[1]"), (*ids[2], "[1]")]
    assert shard.changed_keys(1, 1, 3, 9) == [("a", 5, 9)]
    shard.verify_rows(3)
    monkeypatch.setattr(local_shard, "_COMPACT_ROWS", 1)
    assert shard.compact(3) == 3, (
        "the grown session, its tombstone, and the first version of [5, 9]"
    )
    assert [version.row for version in shard.row_versions(0, None, 9)] == [
        (0, "a", 5, 9, "[2]"), (1, "a", 5, 7, "[1]"), (1, "a", 5, 9, "[2]"),
    ]  # fmt: skip
    shard.verify_rows(3)


def test_a_window_that_begins_before_1970_is_on_the_first_page(shard: LocalShard) -> None:
    rows = [(0, "", -3_600_000, 82_800_000, "[1]"), (0, "a", -3_600_000, 82_800_000, "[2]")]
    write_rows(shard, 0, rows)
    (page,) = pages_of_versions(shard, group=0)
    assert [(version.key, version.window_start) for version in page] == [
        ("", -3_600_000),
        ("a", -3_600_000),
    ]
    assert [
        entry.key for entry in shard.scan(0, 0, within=RowRange(start_from=-3_600_000, start_to=-1))
    ] == ["", "a"]


def test_pages_continue_where_the_last_one_ended(shard: LocalShard) -> None:
    write_rows(
        shard,
        0,
        [row(f"k{number}", "[1]", 1, start) for number in range(5) for start in (0, 15_000)],
    )
    page = shard.scan(1, 0, limit=3)
    seen = []
    while page:
        seen += [state_row.entry_id for state_row in page]
        page = shard.scan(1, 0, after=seen[-1], limit=3)
    assert seen == [
        (f"k{number}", start, start + 15_000) for number in range(5) for start in (0, 15_000)
    ]
    assert shard.scan(1, 0, RowRange(first="k3"), after=("k1", 0, 15_000), limit=1)[0].key == "k3"
    assert [
        group_id.key
        for group_id in shard.scan(1, 0, RowRange.of_key("k3"), after=("k3", 0, 15_000))
    ] == ["k3"]
    assert shard.count(1, 0, RowRange(start_from=15_000)) == 5


@pytest.mark.parametrize(
    ("within", "expected"),
    [
        (RowRange(prefix="a"), ["a", "a\U0010ffff", "ab"]),
        (RowRange(prefix="a\U0010ffff"), ["a\U0010ffff"]),
        (RowRange(prefix="\ud7ff"), ["\ud7ff", "\ud7ffx"]),
        (RowRange(first="ab", last="é"), ["ab", "a\U0010ffff", "b", "é"]),
        (RowRange(first="Z", last="Z"), ["Z"]),
        (RowRange(last="Z"), ["%", "Z"]),
        (RowRange(prefix="%"), ["%"]),
    ],
)
def test_ranges_and_prefixes(shard: LocalShard, within: RowRange, expected: list[str]) -> None:
    keys = ["a", "ab", "a\U0010ffff", "b", "Z", "é", "%", "\ud7ff", "\ud7ffx", "\ue000"]
    write_rows(shard, 0, [row(key, "[1]") for key in keys])
    assert sorted(group_id.key for group_id in shard.scan(0, 0, within)) == sorted(expected)
    assert shard.count(0, 0, within) == len(expected)
    results = [group_id.key for group_id in shard.scan(0, 0)]
    assert results == sorted(keys, key=lambda key: key.encode())


def test_count_leaves_out_rows_whose_first_value_is_null(shard: LocalShard) -> None:
    write_rows(
        shard,
        0,
        [
            row("a", "[null]"),
            row("b", "[null,1]"),
            row("c", '["null"]'),
            row("d", "[[null]]"),
            row("e", "[0]"),
        ],
    )
    assert shard.count(0, 0) == 3
    assert Count(0, 0, 0, RowRange()).execute(shard) == len(
        Scan(0, 0, 0, RowRange(), None, 10).execute(shard)
    )


def test_compaction_keeps_versions_of_later_snapshots(
    shard: LocalShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.state.shard.local_shard._COMPACT_ROWS", 3)
    choose = random.Random(7)
    for batch in range(12):
        keys = choose.sample([f"k{number}" for number in range(15)], 6)
        write_rows(shard, batch, [row(key, choose.choice([f"[{batch}]", None])) for key in keys])
    before = {batch: shard.scan(0, batch) for batch in range(12)}
    assert shard.compact(8) > 0
    assert {batch: shard.scan(0, batch) for batch in range(8, 12)} == {
        batch: before[batch] for batch in range(8, 12)
    }
    assert shard.compact(8) == 0
    assert shard.compact(11) > 0
    assert shard.scan(0, 11) == before[11]


def test_the_checksum_depends_on_the_state_only(database: str) -> None:
    def of(name: str, *batches: list[tuple[int, str, int, int, str | None]]) -> str:
        with LocalShard.create(location(database, GenerationRef(name, 1), 0)) as shard:
            for number, rows in enumerate(batches):
                write_rows(shard, number, rows)
                shard.verify_rows(number)
            return shard.checksum(99)

    short = of("short", [row("a", "[2]"), row("b", "[1]"), row("c", "[1]", 1, 0)])
    begun = [row("c", "[1]", 1, 0), row("a", "[1]"), row("x", "[1]")]
    assert of("long", begun, [row("b", "[1]")], [row("x", None), row("a", "[2]")]) == short
    assert of("empty", [row("a", "[1]")], [row("a", None)]) == of("none") == NO_CHECKSUM
    others = [
        of("value", [row("a", "[3]"), row("b", "[1]"), row("c", "[1]", 1, 0)]),
        of("key", [row("a", "[1]"), row("b", "[2]"), row("c", "[1]", 1, 0)]),
        of("less", [row("a", "[2]"), row("b", "[1]")]),
        of("window", [row("a", "[2]"), row("b", "[1]"), row("c", "[1]", 1, 15_000)]),
    ]
    assert len({short, *others}) == 5


def test_the_checksum_survives_writing_again_and_compaction(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", "[1]"), row("b", "[1]")])
    write_rows(shard, 1, [row("a", "[2]"), row("c", "[1]")])
    before = shard.checksum(1)
    write_rows(shard, 1, [row("c", "[7]")])
    assert shard.checksum(1) != before
    write_rows(shard, 1, [row("a", "[2]"), row("c", "[1]")])
    assert shard.checksum(1) == before
    write_rows(shard, 2, [row("a", None)])
    shard.compact(1)
    for batch in (1, 2):
        shard.verify_rows(batch)
    assert shard.checksum(1) == before


def test_a_changed_value_is_detected(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", "[1]"), row("b", "[1]")])
    shard._driver.execute("UPDATE state_rows SET value = '[9]' WHERE key = 'b'")
    with pytest.raises(StateError, match="the state row of group 0, key 'b' was altered"):
        shard.verify_rows(0)


def test_an_older_writer_is_rejected(shard: LocalShard) -> None:
    write_rows(shard, 0, [row("a", "[1]")], epoch=3)
    write_rows(shard, 1, [row("a", "[2]")], epoch=4)
    with pytest.raises(LeaseError, match="lost its lease"):
        write_rows(shard, 1, [row("a", "[3]")], epoch=3)
    assert shard.get(0, "a", 1) == "[2]"


ROWS = 4_000


def test_a_flipped_byte_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "s.sqlite"
    with LocalShard.create(f"sqlite:///{file}") as shard:
        write_rows(shard, 0, [row(f"key {number}", "[1]") for number in range(ROWS)])
    data = file.read_bytes()
    choose = random.Random(7)
    for _ in range(20):
        flipped = bytearray(data)
        # Within the pages of the state rows; free space does not matter.
        place = choose.randrange(len(data) // 4, len(data) // 2)
        flipped[place] ^= 1 << choose.randrange(8)
        file.write_bytes(flipped)
        with contextlib.closing(sqlite3.connect(file)) as database:
            try:
                same = database.execute("SELECT * FROM state_rows").fetchall() == expected(ROWS)
            except sqlite3.DatabaseError:
                same = False
        if not same:
            with pytest.raises(StateError), LocalShard.open(f"sqlite:///{file}") as shard:
                shard.verify_rows(0)


def expected(number: int) -> list[tuple[int, str, int, int, int, str | None, int]]:
    names = [f"key {n}" for n in range(number)]
    return sorted(
        (0, key, NO_WINDOW, NO_WINDOW, 0, "[1]", row_digest(row(key, "[1]"))) for key in names
    )


def test_arrow_rows_are_sorted_as_the_database_sorts(shard: LocalShard) -> None:
    columns: dict[str, list[int | str | None]] = {
        "value": ["[2]", "[1]", None],
        "group_id": [1, 0, 0],
        "key": ["a", "b", "a"],
    }
    table = pa.table({**columns, "window_start": [0, 0, 0], "window_end": [5, 5, 5]})
    rows = columns_of(sorted_rows(table))
    assert [row[:5] for row in rows] == [
        (0, "a", 0, 5, None),
        (0, "b", 0, 5, "[1]"),
        (1, "a", 0, 5, "[2]"),
    ]
    written = shard.write_pages(0, [rows])
    assert written == 2, "a row that is not there needs no tombstone"
    shard.verify_rows(0)


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 9),
            st.text(st.characters(exclude_categories=["Cs"])),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(-1, 2**62),
            st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        )
    )
)
def test_a_page_has_the_digests_of_its_rows(rows: list[Row]) -> None:
    types = (pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.string())
    columns = [pa.array([each[number] for each in rows], kind) for number, kind in enumerate(types)]
    page = pa.table(columns, StateRow.__struct_fields__)
    assert row_digests(page) == [row_digest(each) for each in rows]


def test_a_missing_shard_is_an_error(url: str, tmp_path: Path) -> None:
    with pytest.raises(StateError):
        LocalShard.open(url)
    assert list(tmp_path.rglob("*.sqlite")) == []


def test_a_run_that_begins_finds_an_altered_row_it_would_not_touch(tmp_path: Path) -> None:
    file = tmp_path / "worker-0.sqlite"
    with LocalShard.create(f"sqlite:///{file}") as shard:
        write_rows(shard, 0, [row("a", "[1]"), row("b", "[2]")])
        shard.begin_run(1, 0)
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE state_rows SET value = '[3]' WHERE key = 'b'")
        database.commit()
    with (
        LocalShard.open(f"sqlite:///{file}", to_write=True) as shard,
        pytest.raises(DamagedState, match="key 'b' was altered"),
    ):
        shard.begin_run(2, 0)


@pytest.mark.parametrize("content", [b"", b"no database at all" * 500])
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "worker-0.sqlite").write_bytes(content)
    with pytest.raises(StateError, match=r"no such table|not a database"):
        LocalShard.open(f"sqlite:///{tmp_path}/worker-0.sqlite")


def test_a_replaced_file_is_detected(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/worker-0.sqlite"
    LocalShard.create(url).close()
    shard = LocalShard.open(url)
    assert shard.is_current()
    (tmp_path / "worker-0.sqlite").unlink()
    assert not shard.is_current()


def test_locations() -> None:
    assert (
        location("sqlite:////data/shards", GenerationRef("orders", 2), 3)
        == "sqlite:////data/shards/orders/g2/worker-3.sqlite"
    )
    assert (
        location("postgresql://u:p@h/db", GenerationRef("orders", 2), 3)
        == "postgresql+psycopg://u:p@h/db?schema=sluice_orders_g2_w3"
    )
    long = location("postgresql://h/db", GenerationRef("p" * 80, 1), 0).partition("schema=")[2]
    assert long.endswith("_g1_w0")
    assert len(long) <= 63


@pytest.mark.attack("S4", "names of pipelines that would escape the folder of shards")
@pytest.mark.parametrize("name", ["../up", "a/b", "", "a b", "a\0b", "x?y"])
def test_names_cannot_escape_the_folder(name: str) -> None:
    with pytest.raises(SettingsError):
        location("sqlite:////data/shards", GenerationRef(name, 1), 0)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.integers()
    )
)
def test_keys_can_be_any_text(values: dict[str, int]) -> None:
    import tempfile

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalShard.create(f"sqlite:///{folder}/s") as shard,
    ):
        write_rows(shard, 0, [row(key, f"[{value}]") for key, value in values.items()])
        assert {group_id.key: group_id.value for group_id in shard.scan(0, 0)} == {
            key: f"[{value}]" for key, value in values.items()
        }


def test_a_silent_writer_in_postgresql_loses_its_transaction(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_driver, "WRITER_SILENT_S", 1)
    url = location(new_database(postgres), GenerationRef("orders", 1), 0)
    with LocalShard.create(url) as paused, LocalShard.open(url, to_write=True) as next_writer:
        write_rows(paused, 0, [row("a", "[1]")], epoch=1)

        def write_late() -> None:
            with paused._writing(1):
                next_writer.begin_run(
                    2, 0
                )  # waits until PostgreSQL has ended the paused writer's transaction
                paused._driver.execute("DELETE FROM state_rows")

        with pytest.raises(StateError, match="idle-in-transaction timeout"):
            write_late()
        assert next_writer.get(0, "a", as_of=0) == "[1]"


def test_a_full_disk_is_named_though_sqlite_has_already_rolled_back(tmp_path: Path) -> None:
    with LocalShard.create(f"sqlite:///{tmp_path}/w.sqlite") as shard:
        write_rows(shard, 0, [(0, "a", NO_WINDOW, NO_WINDOW, "[1]")])
        connection = shard._driver._connection  # type: ignore[attr-defined]
        connection.execute("PRAGMA cache_size = 1")
        connection.execute(
            f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0] + 2}"
        )
        with pytest.raises(StateError, match="database or disk is full"):
            write_rows(
                shard, 1, [(0, f"{n:0500}", NO_WINDOW, NO_WINDOW, "[1]") for n in range(5_000)]
            )
        assert shard.get(0, "a", 1) == "[1]"


@pytest.mark.parametrize("name", ["orders", "orders_" + "x" * 50])
def test_all_shards_of_a_pipeline_are_found_without_a_ledger(database: str, name: str) -> None:
    written: dict[int, list[str]] = {}
    for generation, worker in ((1, 1), (9, 0), (40, 0), (40, 1)):
        address = location(database, GenerationRef(name, generation), worker)
        LocalShard.create(address).close()
        written.setdefault(generation, []).append(address)
    for other in ("order", f"{name}_g1", f"x{name}"):
        LocalShard.create(location(database, GenerationRef(other, 1), 0)).close()
    assert shards_of(database, name) == written
