"""A pipeline's runs: what they read and publish, and how the next run continues."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from sluice import Pipeline, session
from sluice.engine.batch.side_outputs import BatchStats, Collected, SideOutput
from sluice.errors import EngineError
from sluice.kafka.topics import text_headers
from sluice.state.ledger.audits import SourceAudit
from sluice.state.model import GenerationRef
from sluice.state.remote.opening import open_shard
from sluice.state.shard.checksums import NO_CHECKSUM
from sluice.topology.loading.pipeline_import import load_file
from sluice.values.key_owners import owner
from sluice.values.record_metadata import OnError
from sluice.values.windows import AnyWindow
from tests.engine.conftest import Start
from tests.engine.shop import (
    GRACE,
    Build,
    Names,
    address,
    millis,
    sale,
    sales_of,
    shop,
    simple_shop,
)


@pytest.mark.spark
def test_a_run_reads_all_records_and_publishes_one_snapshot(start: Start) -> None:
    running = start(shop, sales=2)
    running.send("shops", address("a", "Aachen"))
    running.send("sales", sale("a", "1.10"), sale("a", "2.20", at="08:00:59"), sale("b", "5.00"))
    running.send("sales", sale("a", "3.30", at="08:01:00"), partition=1)

    assert running.run() == 5

    assert running.store("n") == {"a": 3, "b": 1}
    assert running.store("total") == {"a": {"n": 3, "amount": 6.6}, "b": {"n": 1, "amount": 5.0}}
    first, second = millis("08:00:00"), millis("08:01:00")
    assert running.store("n_window") == {("a", first): 2, ("b", first): 1, ("a", second): 1}
    assert running.store("shops") == {"a": {"shop": "a", "city": "Aachen"}}
    copies = running.output("copies")
    assert sorted(copies, key=str) == sorted(
        [
            ("a", {"shop": "a", "amount": 1.1}),
            ("a", {"shop": "a", "amount": 2.2}),
            ("b", {"shop": "b", "amount": 5.0}),
            ("a", {"shop": "a", "amount": 3.3}),
        ],
        key=str,
    )
    assert running.output("with_city") == [("a", {"shop": "a", "amount": 6.6, "city": "Aachen"})]
    assert dict(running.output("with_any_city")) == {
        "a": {"amount": 6.6, "city": "Aachen"},
        "b": {"amount": 5.0, "city": None},
    }
    assert running.dead_letters() == []

    (snapshot,) = running.snapshots()
    assert snapshot.id == "1.0"
    assert snapshot.positions == {
        running.names("sales"): {"0": 3, "1": 1},
        running.names("shops"): {"0": 1},
    }
    assert snapshot.stream_times == {
        f"n_window/{running.names('sales')}/0": millis("08:00:59"),
        f"n_window/{running.names('sales')}/1": millis("08:01:00"),
    }
    assert snapshot.counts == {
        "read": 5,
        "applied": 5,
        "filtered": 0,
        # Two keys of totals, three windows, and the table's row on both workers.
        "rows": 2 + 3 + 2,
        f"output/{running.names('copies')}": 4,
        f"output/{running.names('with_city')}": 1,
        f"output/{running.names('with_any_city')}": 2,
    }


def closed(folder: Path) -> bool:
    """Whether only its owner can enter a folder."""
    return folder.stat().st_mode & 0o077 == 0


@pytest.mark.spark
def test_the_next_run_continues_where_the_last_one_ended(start: Start) -> None:
    running = start(shop)
    running.send("sales", sale("a"), sale("a", at="08:00:01"))
    assert running.run() == 2
    assert running.run() == 0
    assert len(running.snapshots()) == 1  # without new records, no snapshot is published

    running.send("sales", sale("a", at="08:00:02"), sale("b"))
    assert running.run() == 2
    assert running.store("n") == {"a": 3, "b": 1}
    # The window was kept between the runs.
    assert running.store("n_window") == {("a", millis("08:00:00")): 3, ("b", millis("08:00:00")): 1}
    assert [snapshot.counts["read"] for snapshot in running.snapshots()] == [2, 2]
    assert [snapshot.positions[running.names("sales")] for snapshot in running.snapshots()] == [
        {"0": 2},
        {"0": 4},
    ]
    assert len(running.output("copies")) == 4


def test_a_closed_window_accepts_no_records_but_can_be_queried(start: Start) -> None:
    running = start(shop)
    running.send("sales", sale("a", at="08:00:00"), sale("b", at="08:01:14"))
    running.run()
    running.send(
        "sales", sale("a", at="08:00:30"), sale("b", at="08:01:15")
    )  # closes the first window
    running.run()
    assert running.store("n_window") == {("a", millis("08:00:00")): 2, ("b", millis("08:01:00")): 2}
    # Late, although it has another key; totals have no windows.
    running.send("sales", sale("c", at="08:00:59"), sale("a", at="08:00:59"))
    running.run()
    assert running.store("n_window") == {("a", millis("08:00:00")): 2, ("b", millis("08:01:00")): 2}
    assert running.snapshot().counts["late/n_window"] == 2
    assert running.store("n") == {"a": 3, "b": 2, "c": 1}
    # Days later, the window can still be queried.
    for day in ("06", "07", "08"):
        running.send("sales", sale("d", at=f"2022-12-{day}T08:00:00"))
    running.run(max_records=1)
    assert len(running.snapshots()) == 3 + 3
    windows = running.store("n_window")
    assert windows[("a", millis("08:00:00"))] == 2
    assert len(windows) == 5


def test_no_records_are_left_over_by_rounding(start: Start) -> None:
    running = start(shop, sales=2)
    for partition, count in enumerate((5, 4)):
        running.send("sales", *[sale("a")] * count, partition=partition)
    running.run(max_records=3)
    assert [snapshot.counts["read"] for snapshot in running.snapshots()] == [4, 4, 1]


def test_every_key_is_in_its_owners_shard(start: Start) -> None:
    running = start(shop)
    keys = [
        "a",
        "Café Ünïcode",
        "ключ",
        'it\'s "quoted" \\ and \t tabbed',
        "",
        "😀",
        "a" * 1000,
        "0",
        "null",
    ]
    running.send("sales", *(sale(key) for key in keys))
    running.send("shops", *(address(key, f"city of {key}") for key in keys))
    running.run()
    assert running.store("n") == dict.fromkeys(keys, 1)
    for worker in (0, 1):
        assert running.owned("n", worker) == {key for key in keys if owner(key, 2) == worker}
        assert running.owned("n_window", worker) == {
            (key, millis("08:00:00")) for key in keys if owner(key, 2) == worker
        }
    # A value with special characters is published unchanged.
    assert dict(running.output("with_city")) == {
        key: {"shop": key, "amount": 1.0, "city": f"city of {key}"} for key in keys
    }
    assert dict(running.output("copies")).keys() == set(keys)


@pytest.mark.parametrize("window", [GRACE, session("1 minute", grace="15 seconds")])
def test_every_record_is_accounted_for_by_partition(start: Start, window: AnyWindow) -> None:
    def windows_only(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        groups = sales_of(pipeline, names).filter("amount > 0").group_by("nullif(shop, '')")
        groups.windowed_by(window).count(store="n_window")
        return pipeline

    running = start(windows_only, sales=2)
    running.send(
        "sales",
        sale("a", at="08:00:00"),
        sale("a", at="09:00:00"),
        sale("b", at="08:00:00"),
        b"{",
        sale(""),
    )
    running.send("sales", sale("a", -1), sale("c"), (None, None), partition=1)
    running.run()
    running.send("sales", sale("c", at="09:00:30"), partition=1)
    running.run()

    with running.ledger() as ledger:
        audits = ledger.audits.all(GenerationRef(running.pipeline.name, 1))
    sales = running.names("sales")
    sources = [
        [
            msgspec.structs.replace(
                source, last=-1, fingerprint="", leader_epoch=-1, first_leader_epoch=-1
            )
            for source in audit.sources
        ]
        for audit in audits
    ]
    assert [[source.last for source in audit.sources] for audit in audits] == [[4, 2], [3]]
    assert sources[0] == [
        SourceAudit(
            topic=sales, partition=0, start=0, end=5, read=5, applied=2, late=1, dropped={"null_key": 1},
            dead_letters={"malformed": 1}, passed_over={"late/n_window": 1, "null_key/n_window": 1},
        ),
        SourceAudit(
            topic=sales, partition=1, start=0, end=3, read=3, applied=1, filtered=1, dead_letters={"null_value": 1}
        ),
    ]  # fmt: skip
    assert sources[1] == [SourceAudit(topic=sales, partition=1, start=3, end=4, read=1, applied=1)]
    assert audits[0].outputs == {running.pipeline.dead_letters: 2}
    assert [audit.wrong for audit in audits] == [[], []]
    with running.ledger() as ledger:
        workers = ledger.generations.workers(running.pipeline.name)
    for worker in workers:
        with open_shard(worker.location) as shard:
            shard.verify_rows(1)
            assert shard.checksums(1).state_rows == audits[1].checksums.get(
                str(worker.number), NO_CHECKSUM
            )


def test_a_batch_that_does_not_balance_is_not_published(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(simple_shop)
    running.send("sales", sale("a"), sale("b"))
    one_more = BatchStats({"read": 1}, partition=f"{running.names('sales')}-0")
    begin = Collected.__init__

    def begin_with_one_more(self: Collected, outputs: Iterable[SideOutput]) -> None:
        begin(self, outputs)
        self.add_stats(one_more)

    monkeypatch.setattr(Collected, "__init__", begin_with_one_more)
    with pytest.raises(Exception, match=r"sales/0: 3 records were read, but 2 are accounted for"):
        running.run()
    assert running.snapshots() == []
    assert running.output("copies") == []


def shares(on_error: OnError) -> Build:
    """The share of each sale."""

    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        sales_of(pipeline, names).select(share="1 / amount", on_error=on_error).to(names("shares"))
        return pipeline

    return build


def test_a_record_without_a_result_is_a_dead_letter(start: Start) -> None:
    running = start(shares("dead_letter"))
    running.send("sales", sale("a"), sale("b", "0.00"))
    assert running.run() == 2
    assert len(running.output("shares")) == 1
    (letter,) = running.dead_letters()
    assert text_headers(letter)["sluice.detail"] == "DIVIDE_BY_ZERO in 1 / amount"


def test_a_record_without_a_result_ends_the_run_with_on_error_fail(start: Start) -> None:
    running = start(shares("fail"))
    running.send("sales", sale("a"), sale("b", "0.00"))
    with pytest.raises(
        EngineError, match=r"select at test_run.py:\d+ failed .*DIVIDE_BY_ZERO in 1 / amount"
    ):
        running.run()
    assert running.snapshots() == []
    assert running.output("shares") == []


PIPELINE = """
from datetime import datetime
from msgspec import Struct
from sluice import Pipeline


class Ride(Struct):
    line: str
    at: datetime


pipeline = Pipeline("{name}", workers=1)
pipeline.stream("{topic}", value=Ride, event_time="at").group_by("line").count(store="rides")
"""


@pytest.mark.spark
def test_executors_need_only_the_pipelines_file(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "jobs#1" / "rides.py"
    file.parent.mkdir()

    def from_file(names: Names) -> Pipeline:
        file.write_text(PIPELINE.format(name=names.prefix, topic=names("rides")))
        return load_file(file)

    running = start(from_file)
    running.send("rides", b'{"line": "U1", "at": "2022-12-05T08:00:00"}', b'{"line": "U1"}')
    assert running.run() == 2
    assert running.store("rides") == {"U1": 1}
    assert running.reasons() == ["contract"]
    with running.ledger() as ledger:
        generation = ledger.generations.current(running.pipeline.name)
    assert generation is not None
    assert generation.topics == (running.names("rides"),)
    assert generation.stores[0].value == "bigint"
    assert generation.description.startswith(
        f"pipeline {running.names.prefix}, 1 worker\n  stream "
    )
    assert generation.picture.startswith("<svg ")
