"""Timers on the wall clock fire in a run without records, and again at the same time in a replay."""

from __future__ import annotations

import time

from sluice import Context, Pipeline, Record, Timer, tumbling
from sluice.operations.rebuild import Rebuild
from sluice.operations.repartition import repartition
from sluice.plan import plan
from tests.engine.conftest import Start
from tests.engine.shop import Amount, Names


class Silence:
    """Reports each key that has sent nothing for half a second, and how often that has happened."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Amount]) -> None:
        self.context.schedule("silence", self.context.wall_clock + 500, clock="wall")

    def on_timer(self, timer: Timer) -> None:
        alarms = self.context.store("alarms")
        alarms.put("count", alarms.get("count", 0) + 1)
        self.context.forward(timer.key, timer.now, time=timer.now)


def silence(names: Names, workers: int = 2) -> Pipeline:
    pipeline = names.pipeline(workers=workers)
    amounts = pipeline.stream(names("amounts"), value=Amount)
    alarms = amounts.process(Silence, stores={"alarms": int}, returns=int).output
    alarms.to(names("alarms"))
    alarms.group_by_key().reduce(max, store="latest")
    return pipeline


def quiet_windows(names: Names) -> Pipeline:
    pipeline = names.pipeline(workers=2, advance_when_idle="100 ms")
    amounts = pipeline.stream(names("amounts"), value=Amount).group_by_key()
    windows = amounts.windowed_by(tumbling("200 ms"), emit="window_close").count(store="windows")
    windows.to(names("closed"))
    windows.to_stream().select_key("_key").to_table(store="latest")
    return pipeline


def test_windows_close_in_a_run_without_records(start: Start) -> None:
    running = start(quiet_windows, amounts=2)
    running.send("amounts", ("a", b'{"n":1}'), ("b", b'{"n":1}'))
    assert running.run() == 2
    due = running.snapshot().due
    # A slow run sees the end of the windows itself, in a batch without records.
    if due is not None:
        time.sleep(max(due / 1000 - time.time(), 0) + 0.5)
        assert running.run() == 0
    assert dict(running.output("closed")).keys() == {"a", "b"}
    assert running.snapshot().due is None
    before = running.store("windows"), running.store("latest")
    Rebuild(running.spark, plan(running.pipeline).job, running.settings).run()
    assert (running.store("windows"), running.store("latest")) == before


def test_timers_fire_in_a_run_without_records(start: Start) -> None:
    running = start(silence, amounts=2)
    running.send("amounts", ("a", b'{"n":1}'), ("b", b'{"n":1}'))
    assert running.run() == 2
    due = running.snapshot().due
    assert due is not None
    time.sleep(max(due / 1000 - time.time(), 0) + 0.01)
    assert running.run() == 0
    alarms = dict(running.output("alarms"))
    assert alarms.keys() == {"a", "b"}
    assert all(due <= at for at in alarms.values())
    assert running.store("latest") == alarms
    assert running.snapshot().due is None
    snapshots = len(running.snapshots())
    assert running.run() == 0
    assert len(running.snapshots()) == snapshots, "nothing is due, so there is no batch"

    # A batch without records belongs to the history: a rebuild gives the timers the same time.
    before = running.store("latest"), running.store("alarms")
    Rebuild(running.spark, plan(running.pipeline).job, running.settings).run()
    assert (running.store("latest"), running.store("alarms")) == before

    # With another number of workers, every worker knows when to look for timers.
    running.send("amounts", ("a", b'{"n":1}'))
    running.run()
    job = plan(silence(running.names, 3)).job
    repartition(job, running.settings)
    running.pipeline = silence(running.names, 3)
    time.sleep(0.51)
    assert running.run() == 0
    assert len(running.output("alarms")) == 3
    assert running.store("alarms") == {"a": {"count": 2}, "b": {"count": 1}}
