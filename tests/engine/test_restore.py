"""A run that finds damaged state restores it from the topics and reports that; it stops only if this is impossible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from rich.console import Console

from sluice.errors import DamagedState, LeaseError
from sluice.observe.audit_report import report
from sluice.operations.rebuild import Rebuild
from sluice.operations.repair import RepairingRun
from sluice.plan import plan
from sluice.query import Reader
from sluice.state.ledger.generations import Generations
from tests.engine.conftest import Running, Start
from tests.engine.shop import sale, shop, simple_shop
from tests.engine.test_replay import a_busy_day


def run(running: Running) -> int:
    job = plan(running.pipeline).job
    return RepairingRun(running.spark, job, running.settings).run()


def damage(running: Running, how: Callable[[bytes], bytes] | None) -> None:
    """Change a worker's shard, or remove it."""
    with running.ledger() as ledger:
        generation = ledger.generations.current_number(running.pipeline.name)
    (file,) = running.settings.home.rglob(f"g{generation}/worker-0.sqlite")
    for beside in file.parent.glob("worker-0.sqlite-*"):
        beside.unlink()
    if how is None:
        file.unlink()
    else:
        file.write_bytes(how(file.read_bytes()))


def notes(running: Running) -> list[str]:
    with running.ledger() as ledger:
        return [note.text for note in ledger.notes.all(running.pipeline.name)]


async def answer(running: Running) -> tuple[dict[str, int], bool]:
    with running.ledger() as ledger:
        reader = Reader(ledger)
        (store,) = [one for one in await reader.catalogue.stores() if one.name == "n"]
        result = await reader.all(await reader.catalogue.pin(store))
        return {entry.key: int(bytes(entry.value)) for entry in result.entries}, result.partial


def test_a_run_restores_a_truncated_shard_and_continues(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    running = start(shop, sales=3)
    a_busy_day(running)
    running.run(max_records=30)
    before = running.everything()
    damage(running, lambda data: data[: len(data) // 2])
    running.send("sales", sale("z", at="08:31:00"))
    assert run(running) == 1
    assert running.store("n") == before["stores"]["n"] | {"z": 1}
    assert running.store("n_window").items() >= before["stores"]["n_window"].items()
    assert len(running.output("copies")) == len(before["outputs"][running.names("copies")]) + 1
    assert len(running.dead_letters()) == len(before["dead letters"])
    (note,) = notes(running)
    assert "State was damaged, and restored from the topics in " in note
    assert "state restored" in capsys.readouterr().out
    out = Console(record=True, width=200)
    assert report(running.settings.ledger, running.pipeline.name, "", out, verify=True)
    assert "restored from the topics in" in out.export_text()


def test_the_next_run_completes_an_interrupted_restore(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(simple_shop)
    running.send("sales", *(sale(key) for key in "abcdef"))
    running.run()
    whole = running.store("n")
    damage(running, None)
    running.send("sales", sale("a"))

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for step in ("_compare", "promote"):
        with monkeypatch.context() as patched:
            patched.setattr(Rebuild if step == "_compare" else Generations, step, killed)
            with pytest.raises(KeyboardInterrupt):
                run(running)
        # Queries read the remaining workers, and report that the answer is partial.
        left, partial = asyncio.run(answer(running))
        assert partial
        assert left.items() < whole.items()
    assert run(running) == 1
    result, partial = asyncio.run(answer(running))
    assert (result, partial) == (whole | {"a": 2}, False)
    assert len(running.output("copies")) == 7
    with running.ledger() as ledger:
        old, new = ledger.generations.numbers(running.pipeline.name)
    assert old == 1 < new


def test_incomplete_topics_cannot_restore_state(start: Start) -> None:
    running = start(simple_shop)
    running.send("sales", *(sale(key) for key in "abc"))
    running.run()
    damage(running, None)
    place = TopicPartition(running.names("sales"), 0, 2)
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    admin.delete_records([place])[place].result(20)
    with pytest.raises(DamagedState, match=r"shard is damaged.* cannot be restored .*has lost offsets 0 to 1"
                       r".* sluice rebuild shop_gw\d+_\d+ --from-topics"):  # fmt: skip
        run(running)
    assert running.snapshot().id == "1.0"
    assert notes(running) == []


def test_state_is_not_restored_twice(start: Start) -> None:
    running = start(simple_shop)
    running.send("sales", sale("a"))
    running.run()
    job = plan(running.pipeline).job
    assert Rebuild(running.spark, job, running.settings, only=1).run() == 2
    with pytest.raises(LeaseError, match="was replaced by generation 2"):
        Rebuild(running.spark, job, running.settings, only=1).run()
