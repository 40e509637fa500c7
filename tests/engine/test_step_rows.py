"""Each batch counts the rows that its steps with a state have received and have passed on."""

from __future__ import annotations

import json
import random
from collections import Counter

from sluice import Pipeline, tumbling
from tests.engine.conftest import Running, Start
from tests.engine.every_operator import every_operator, rounds, send_round
from tests.engine.shop import Names, sale, sales_of

OUTPUTS = {
    "deduplicate": ["once"],
    "join": ["foreign", "lookups", "pairs"],
    "process": ["turns"],
    "python": ["in_python"],
    "suppress": ["closed", "limited"],
}
"""Kind of step → the topics to which steps of this kind write all of their results."""


def step_rows(running: Running) -> Counter[str]:
    """Return the counts of all batches."""
    total: Counter[str] = Counter()
    with running.ledger() as ledger:
        info = ledger.generations.current(running.pipeline.name)
        assert info is not None
        for audit in ledger.audits.all(info.ref):
            total.update(audit.step_rows)
    return total


def received(rows: Counter[str], kind: str) -> list[dict[int, int]]:
    """Return the received rows by input, for each step of a kind."""
    by_step: dict[str, dict[int, int]] = {}
    for name, count in rows.items():
        if name.startswith(f"received/{kind}"):
            step, _, index = name.rpartition("/")
            by_step.setdefault(step, {})[int(index)] = count
    return list(by_step.values())


def test_steps_receive_each_record_and_pass_on_each_result_once(start: Start) -> None:
    running = start(every_operator, sales=2)
    quantities: list[int] = []
    changes_of_table = 0
    for number, records in enumerate(rounds(random.Random(7))):
        send_round(running, records, at=1_000_000 * (number + 1))
        running.run()
        for topic, _, value in records:
            changes_of_table += topic == "table"
            if topic == "sales":
                quantities.append(json.loads(value or b"")["quantity"])
    rows, sales = step_rows(running), len(quantities)

    for step in ("python", "windows", "sessions", "n", "deduplicate", "process", "latest"):
        assert received(rows, step) == [{0: sales}], step
    large = sum(quantity > 3 for quantity in quantities)
    # The join of a table by a foreign key, and the group of a table, get old rows besides new ones.
    joins = received(rows, "join")
    assert sorted(joins, key=str)[0] == {0: sales, 1: large}
    assert len(joins) == 3
    assert received(rows, "per_city") == []
    assert received(rows, running.names("table")) == [{0: changes_of_table}]

    for kind, topics in OUTPUTS.items():
        results = [count for name, count in rows.items() if name.startswith(f"results/{kind}")]
        written = [running.counts(f"output/{running.names(topic)}") for topic in topics]
        assert set(written) <= set(results), kind


def grouped(names: Names) -> Pipeline:
    """Two stores of one group, of which one has windows."""
    pipeline = names.pipeline()
    groups = sales_of(pipeline, names).filter("amount > 1").group_by("shop")
    groups.count(store="n")
    groups.aggregate(store="total", amount="sum(amount)")
    groups.windowed_by(tumbling("10 seconds", grace="0 seconds")).count(store="per_window")
    return pipeline


def test_groups_receive_the_records_that_reach_them_even_if_late(start: Start) -> None:
    running = start(grouped)
    running.send("sales", sale("a", 2, at="08:01:00"), sale("a", 1), sale("b", 2, at="08:00:00"))
    running.run()
    running.send("sales", sale("a", 3, at="08:02:00"))
    running.run()
    assert step_rows(running) == {
        "received/n/0": 3,
        "received/total/0": 3,
        "received/per_window/0": 3,
    }


def test_a_repeated_batch_is_counted_once(start: Start) -> None:
    running = start(grouped)
    running.send("sales", sale("a", 2), sale("b", 2))
    running.crash_before_publishing()
    running.run()
    assert step_rows(running)["received/n/0"] == 2
