"""Times Nexmark's queries with a real broker: `nexmark.py [--events N] [--query q5] [--peer PATH]`.

A run is timed from the start of `sluice run`, with empty state, until the ledger has a snapshot
with every event of the topics that the query reads. The seconds include the start of Spark, which
takes most of the time of a run with few events. `tests/acceptance/nexmark` has the queries and
compares their results with plain Python.

With `--peer`, the same query in Flink SQL follows on the same topics, from the start of its process
until its last transaction is committed. The folder PATH has a virtual environment `venv` with
`apache-flink`, and the jar of Flink's Kafka connector, `flink-sql-connector-kafka-*.jar`, in
`jars`.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from benchmarks import cost, nexmark_flink
from sluice.kafka.topics import produce
from sluice.local.broker import EmbeddedKafka
from tests.acceptance.nexmark.events import events, topic_of
from tests.acceptance.nexmark.expected import side_input
from tests.acceptance.nexmark.queries import QUERIES
from tests.support.signals import interrupt_on_sigterm

ROOT = Path(__file__).resolve().parents[1]
FILE = '''"""A query of Nexmark."""

from tests.acceptance.nexmark.queries import {query}

pipeline = {query}("nexmark_{query}")
'''

console = Console(stderr=True)


def main(
    count: Annotated[int, typer.Option("--events", help="Number of events.")] = 1_000_000,
    queries: Annotated[
        list[str] | None, typer.Option("--query", help="Such as q5; can be repeated.")
    ] = None,
    peer: Annotated[
        Path | None, typer.Option(help="Folder with Flink and its Kafka connector.")
    ] = None,
) -> None:
    """Run the queries in turn, and print the rate of each."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        home = Path(folder)
        pipelines = home / "pipelines"
        pipelines.mkdir()
        for name in QUERIES:
            (pipelines / f"nexmark_{name}.py").write_text(FILE.format(query=name))
        with EmbeddedKafka(home / "kafka", quick=False) as kafka:
            kafka.create_topics({"persons": 2, "auctions": 2, "bids": 2, "side_input": 1})
            with console.status(f"producing {count:,} events"):
                produced = produce_events(kafka.bootstrap, count)
            rows: list[str] = []
            for name in queries or QUERIES:
                pipeline = QUERIES[name](f"nexmark_{name}")
                records = sum(produced[topic] for topic in pipeline.topics)
                python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
                own_cost = cost.run(
                    pipeline.name,
                    home=home / name,
                    pipelines=pipelines,
                    kafka={"bootstrap.servers": kafka.bootstrap},
                    records=records,
                    variables={"PYTHONPATH": python_path},
                )
                costs = {"Sluice": own_cost}
                if peer is not None and name in nexmark_flink.QUERIES:
                    costs["Flink"] = of_flink(name, peer, kafka, home / f"flink_{name}")
                for program, figures in costs.items():
                    cpu_by_program: dict[str, float] = {}
                    for process, seconds in figures.cpu_by_program.items():
                        cpu_by_program[process] = round(seconds, 1)
                    times = f"{figures.wall_s:.1f} s, {figures.cpu_s:.1f} CPU s"
                    console.print(name, program, times, cpu_by_program or "")
                rows.append(_row(name, records, costs))
            print("\n".join((*_HEAD, *rows)))


_HEAD = (
    "| query | records/s | Sluice s | Flink s | ratio | Sluice CPU s | Flink CPU s | ratio of CPU "
    "| Sluice GB | Flink GB |",
    f"| {' | '.join(['---'] * 10)} |",
)


def _row(name: str, records: int, costs: Mapping[str, cost.Cost]) -> str:
    """Return a query's row of the table in docs/benchmarks.md.

    If Flink has not run the query, its figures are missing.
    """
    title = (QUERIES[name].__doc__ or "").strip().rstrip(".")
    sluice, flink = costs["Sluice"], costs.get("Flink")
    wall = [f"{sluice.wall_s:.1f}", "", ""]
    cpu = [f"{sluice.cpu_s:.1f}", "", ""]
    memory = [f"{sluice.peak_gb:.2f}", ""]
    if flink is not None:
        wall[1:] = f"{flink.wall_s:.1f}", f"**{sluice.wall_s / flink.wall_s:.2f}**"
        cpu[1:] = f"{flink.cpu_s:.1f}", f"**{sluice.cpu_s / flink.cpu_s:.2f}**"
        memory[1:] = [f"{flink.peak_gb:.2f}"]
    cells = [
        f"{name[1:]}, {title[0].lower()}{title[1:]}",
        f"{records / sluice.wall_s:,.0f}",
        *wall,
        *cpu,
        *memory,
    ]
    return f"| {' | '.join(cells)} |"


def of_flink(query: str, peer: Path, kafka: EmbeddedKafka, folder: Path) -> cost.Cost:
    """Return the cost of a query in Flink SQL, with state and checkpoints in `folder`."""
    folder.mkdir()
    kafka.create_topics({f"flink_{query}": 2})
    connector = next((peer / "jars").glob("flink-sql-connector-kafka-*.jar")).absolute()
    program = [str(peer / "venv/bin/python"), str(ROOT / "benchmarks/nexmark_flink.py"), query]
    program += ["--bootstrap", kafka.bootstrap]
    program += ["--connector", str(connector)]
    program += ["--state", str(folder)]
    variables = {**os.environ, "JVM_ARGS": "-Xmx2g", "FLINK_LOG_DIR": str(folder)}
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        variables.pop(name, None)
    return cost.of_command(*program, environment=variables)


def produce_events(bootstrap: str, count: int) -> Counter[str]:
    """Write the events to their topics, and the side input.

    Returns the number of records of each topic.
    """
    config = {"bootstrap.servers": bootstrap}
    produce(config, "side_input", ((str(key), side_input(key).encode(), 0) for key in range(10)))
    for topic in ("persons", "auctions", "bids"):
        produce(config, topic, _records_of(topic, count))
    return Counter(map(topic_of, events(count))) + Counter(side_input=10)


def _records_of(topic: str, count: int) -> Iterator[tuple[None, bytes, int]]:
    """Yield the records of a topic among the first `count` events."""
    for event in events(count):
        if topic_of(event) == topic:
            yield None, msgspec.json.encode(event), event.at


if __name__ == "__main__":
    interrupt_on_sigterm()
    typer.run(main)
