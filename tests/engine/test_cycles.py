"""A topic that a pipeline both reads and writes, on a broker."""

from __future__ import annotations

from sluice import Pipeline
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from tests.engine.conftest import Start
from tests.engine.shop import Amount, Names


def countdown(names: Names) -> Pipeline:
    pipeline = names.pipeline(workers=2)
    amounts = pipeline.stream(names("amounts"), value=Amount)
    amounts.group_by_key().aggregate(
        list, lambda seen, amount: [*seen, amount.n], store="seen", returns=list[int]
    )
    amounts.filter("n > 0").select(n="n - 1").to(names("amounts"), cycle=True)
    return pipeline


def test_each_run_reads_what_the_run_before_it_has_written(start: Start) -> None:
    running = start(countdown, amounts=2)
    running.send("amounts", ("a", b'{"n":2}'), ("b", b'{"n":1}'))
    assert running.run() == 2
    # The output of the interrupted batch is written, so the repeated batch must not read it.
    running.crash_before_publishing()
    assert running.run() == 2 + 1
    assert [running.run() for _ in range(2)] == [0, 0]
    seen = {"a": [2, 1, 0], "b": [1, 0]}
    assert running.store("seen") == seen
    assert len(running.messages(running.names("amounts"))) == 5
    Rebuild(
        running.spark, plan(running.pipeline).job, running.settings
    ).run()  # compares the checksums
    assert running.run() == 0
    assert running.store("seen") == seen
    assert len(running.messages(running.names("amounts"))) == 5
