"""Side outputs: complete files, equal after every retry, deleted when no batch needs them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sluice import Pipeline
from sluice.engine.batch.side_outputs import Facts, SideOutputs, Written, open_path, part_name
from sluice.engine.batch.storage import Storage
from sluice.errors import SettingsError
from sluice.plan import plan
from sluice.settings import Settings


@pytest.fixture(params=["path", "uri"])
def side_outputs(request: pytest.FixtureRequest, tmp_path: Path) -> SideOutputs:
    return SideOutputs(f"file://{tmp_path}/side_outputs" if request.param == "uri" else f"{tmp_path}/side_outputs")


def records(*keys: str) -> pa.Table:
    return pa.table({"key": list(keys), "value": [key.upper() for key in keys]})


def keys_of(side_outputs: SideOutputs, batch: int, topic: str) -> list[str]:
    return [key for table in side_outputs.records(batch, topic) for key in table.column("key").to_pylist()]


def test_counts_of_all_parts_are_added_up(side_outputs: SideOutputs) -> None:
    side_outputs.write_facts(3, "read-a-00000", Facts({"read": 5}))
    side_outputs.write_facts(3, "part-a-00000", Facts({"applied": 4, "late/w": 1}, {"w/a/0": 70}))
    side_outputs.write_facts(3, "part-a-00001", Facts({"applied": 2}, {"w/a/1": 60}))
    assert side_outputs.facts(3) == Facts({"read": 5, "applied": 6, "late/w": 1}, {"w/a/0": 70, "w/a/1": 60})
    assert side_outputs.facts(4) == Facts()


def test_a_retried_part_replaces_its_files(side_outputs: SideOutputs) -> None:
    for _ in range(2):
        side_outputs.write_facts(0, "read-a-00000", Facts({"read": 5}))
        side_outputs.write_records(0, "out", "part-a-00000", records("x", "y"))
    assert side_outputs.facts(0).counts == {"read": 5}
    assert keys_of(side_outputs, 0, "out") == ["x", "y"]


def test_records_have_the_order_of_the_parts(side_outputs: SideOutputs) -> None:
    for part in (10, 2, 0):
        side_outputs.write_records(0, "out", f"part-a-{part:05}", records(f"from {part}"))
    assert keys_of(side_outputs, 0, "out") == ["from 0", "from 2", "from 10"]


def test_tables_have_files_of_their_own(side_outputs: SideOutputs) -> None:
    """The name of a Delta table's output is a path, of which parts can be equal to other names."""
    outputs = ("delta:/lake/a/b", "delta:/lake/a=b", "delta:/lake/a%2Fb", "b", "warehouse:a.b")
    for output in outputs:
        side_outputs.write_records(0, output, "part-a-00000", records(output))
    for output in outputs:
        assert keys_of(side_outputs, 0, output) == [output]


def test_topics_with_similar_names_are_separate(side_outputs: SideOutputs) -> None:
    side_outputs.write_records(0, "shop.orders", "part-a-00000", records("theirs"))
    side_outputs.write_records(0, "orders", "part-a-00000", records("ours"))
    side_outputs.write_records(0, "orders", "read-b.orders-00000", records("ours too"))
    assert keys_of(side_outputs, 0, "orders") == ["ours", "ours too"]
    assert keys_of(side_outputs, 0, "shop.orders") == ["theirs"]
    assert keys_of(side_outputs, 1, "orders") == []


def test_topics_may_have_the_longest_names(side_outputs: SideOutputs) -> None:
    first, second = ("t" * 248 + letter for letter in "ab")
    for topic in (first, second):
        for partition in (10, 2):
            part = part_name("part", topic, partition)
            side_outputs.write_records(0, first, part, records(f"{topic[-1]} {partition}"))
            side_outputs.write_facts(0, part, Facts({"applied": partition}, {}, f"{topic}-{partition}"))
    assert sorted(keys_of(side_outputs, 0, first)) == ["a 10", "a 2", "b 10", "b 2"]
    assert keys_of(side_outputs, 0, second) == []
    direct = replace(
        side_outputs,
        direct=lambda topic, _: Written({"sent": 1}, {second: records("rejected")}) if topic == first else None,
    )
    assert direct.write_records(0, first, part_name("part", first, 0), records("x")) == {"sent": 1}
    assert keys_of(side_outputs, 0, second) == ["rejected"]
    assert side_outputs.counts_by_partition(0) == {
        (topic, partition): {"applied": partition} for topic in (first, second) for partition in (2, 10)
    }


def test_old_batches_are_dropped_when_a_new_one_starts(side_outputs: SideOutputs, tmp_path: Path) -> None:
    for batch in range(12):
        side_outputs.start(batch)
    # A previous driver may not know yet that it lost its lease, and still work on the previous batch.
    assert {int(folder.name) for folder in (tmp_path / "side_outputs").iterdir()} == {10, 11}


def test_a_file_is_complete_or_absent(side_outputs: SideOutputs) -> None:
    big = records(*(f"key {n}" for n in range(5_000)))
    side_outputs.write_records(0, "out", "part-a-00000", big)
    failures: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                if len(keys_of(side_outputs, 0, "out")) != 5_000:
                    failures.append("torn")
            except (pa.ArrowException, OSError) as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        side_outputs.write_records(0, "out", "part-a-00000", big)
    done.set()
    reader.join()
    assert failures == []


def test_partial_files_of_dead_tasks_are_ignored(side_outputs: SideOutputs, tmp_path: Path) -> None:
    side_outputs.write_records(0, "out", "part-a-00000", records("x"))
    folder = tmp_path / "side_outputs" / "0"
    assert len(list(folder.iterdir())) == 1
    (whole,) = folder.iterdir()
    (folder / f".{whole.name}.1234").write_bytes(b"half of it")
    (folder / ".read-a-00000.facts.json").write_bytes(b"{")
    assert keys_of(side_outputs, 0, "out") == ["x"]
    assert side_outputs.facts(0) == Facts()


def test_a_driver_that_has_lost_its_lease_deletes_nothing_of_its_successor(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    pipeline.stream("orders", value=str).group_by("value").count(store="n")
    storage = Storage.of(plan(pipeline).job, 1, Settings.read({"SLUICE_HOME": str(tmp_path)}))
    paused, successor = (storage.held(epoch).side_outputs for epoch in (1, 2))
    paused.start(5)
    successor.forget_earlier()
    assert [folder.name for folder in Path(storage.folder, "side_outputs").iterdir()] == []
    successor.start(5)
    successor.write_facts(5, "read-orders-00000", Facts({"read": 3}))
    successor.write_records(5, "out", "part-orders-00000", records("x"))
    paused.start(5)
    paused.forget_earlier()
    assert successor.facts(5).counts == {"read": 3}
    assert keys_of(successor, 5, "out") == ["x"]


def test_an_object_store_is_refused_with_an_alternative() -> None:
    with pytest.raises(SettingsError, match="cannot be kept at a s3a:// address") as caught:
        open_path("s3a://user:secret@bucket/checkpoints/orders/g1/side_outputs")
    assert "SLUICE_CHECKPOINTS" in caught.value.next_step
    assert "secret" not in str(caught.value)
