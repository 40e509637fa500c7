"""Times each kind of operator with a real broker: `operators.py [--records N] [--kind NAME]`.

A run is timed from the start of `sluice run`, with empty state, until the ledger has a snapshot
with every record. With `--peer`, the same operator in Kafka Streams (exactly-once, two threads)
follows on the same topics, from the start of its process until every record is processed and its
offset committed. With `--before`, the `sluice` of another checkout follows. CPU seconds and memory
are those of all processes of a program, without the broker. An untimed run comes first, because a
fresh broker answers slowly.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import cost
from benchmarks.cost import Cost
from benchmarks.orders import build_peer
from sluice.kafka.topics import produce
from sluice.local.broker import EmbeddedKafka
from tests.support.signals import interrupt_on_sigterm

START_MS = 1_670_000_000_000
TOPICS = dict.fromkeys(("clicks", "left", "right", "hundreds", "joined", "closed"), 2)
"""Topic → its number of partitions."""

HEAD = '''"""A pipeline of the benchmark of operators."""

from typing import Any

from msgspec import Struct

from sluice import Pipeline, session, sliding, tumbling, within


class Click(Struct):
    number: int


class Counting:
    """Counts the records of each key, and forwards every hundredth count."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        count = (self.context.store("count").get("n") or 0) + 1
        self.context.store("count").put("n", count)
        if count % 100 == 0:
            self.context.forward(record.key, count)


pipeline = Pipeline("{name}", workers=2)
'''
_CLICKS = 'pipeline.stream("clicks", value=Click)'
_GROUPED = f"{_CLICKS}.group_by_key()"
_TABLES = 'pipeline.table("left", value=Click).join(pipeline.table("right", value=Click)'
KINDS = {
    "count": f'{_GROUPED}.count(store="clicks_count")',
    "function": (
        f"{_GROUPED}.aggregate(\n"
        '    int, lambda count, click: count + 1, store="clicks_function", returns=int\n'
        ")"
    ),
    "process": (
        f'counting = {_CLICKS}.process(Counting, stores={{"count": int}}, returns=int)\n'
        'counting.output.to("hundreds")'
    ),
    "session": (
        'window = session("10 seconds", grace="10 seconds")\n'
        f'{_GROUPED}.windowed_by(window).count(store="clicks_session")'
    ),
    "sliding": (
        'window = sliding("10 seconds", grace="10 seconds")\n'
        f'{_GROUPED}.windowed_by(window).count(store="clicks_sliding")'
    ),
    "suppress": (
        'window = tumbling("10 seconds", grace="2 seconds")\n'
        f'closed = {_GROUPED}.windowed_by(window).count(store="clicks_closed")\n'
        'closed.suppress_until_window_closes().to("closed")'
    ),
    "join": (
        'left, right = (pipeline.stream(topic, value=Click) for topic in ("left", "right"))\n'
        'left.join(right, within("1 second", grace="1 second")).to("joined")'
    ),
    "tables": f'{_TABLES}).to("joined")',
    "foreign": f'{_TABLES}, on="concat(\'key-\', number % 25000)").to("joined")',
}
"""Kind of operator → the last lines of its pipeline. The names of the kinds are those of the Kafka
Streams program."""

console = Console(stderr=True)


def main(
    records: Annotated[int, typer.Option(help="Number of records.")] = 1_000_000,
    keys: Annotated[int, typer.Option(help="Number of keys.")] = 50_000,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", help=f"One of {', '.join(KINDS)}; can be repeated."),
    ] = None,
    runs: Annotated[int, typer.Option(help="Number of runs of each program.")] = 1,
    peer: Annotated[Path | None, typer.Option(help="Folder of the Kafka Streams program.")] = None,
    before: Annotated[
        Path | None, typer.Option(help="Another checkout, whose Sluice is timed too.")
    ] = None,
) -> None:
    """Run the programs in turn, and print their costs and ratios."""
    require_known(kinds or ())
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        home = Path(folder)
        program = build_peer(peer, home) if peer else None
        with EmbeddedKafka(home / "kafka", quick=False) as kafka:
            kafka.create_topics(TOPICS)
            with console.status(f"producing {records:,} records"):
                config = {"bootstrap.servers": kafka.bootstrap}
                chance = random.Random(7)
                produce(config, "clicks", clicks(records, keys, chance))
                produce(config, "left", clicks(records // 2, keys, chance))
                produce(config, "right", clicks(records // 2, keys, chance))
            with console.status("warming up the broker"):
                # Whichever program reads from a fresh broker first takes a second longer.
                _sluice("join", "warm_up", home, kafka, records, cost.SLUICE)
            table = Table("operator", "program", "s", "CPU s", "peak GB", "ratio s", "ratio CPU")
            for kind in kinds or KINDS:
                for number in range(runs):
                    costs: dict[str, Cost] = {}
                    name = f"now_{number}"
                    costs["Sluice"] = _sluice(kind, name, home, kafka, records, cost.SLUICE)
                    if before:
                        name, command = f"before_{number}", before / ".venv/bin/sluice"
                        costs["before"] = _sluice(
                            kind, name, home, kafka, records, str(command.absolute())
                        )
                    if program:
                        costs["Kafka Streams"] = _kafka_streams(kind, program, kafka, home, number)
                    _add_rows(table, kind, costs)
            Console().print(table)


def require_known(kinds: Collection[str]) -> None:
    """Raise BadParameter for kinds of operators that do not exist."""
    unknown = {*kinds} - {*KINDS}
    if unknown:
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: choose among {', '.join(KINDS)}.", param_hint="--kind"
        )


def _add_rows(table: Table, kind: str, costs: Mapping[str, Cost]) -> None:
    own = costs["Sluice"]
    for program, cost_of in costs.items():
        ratios = (f"{own.wall_s / cost_of.wall_s:.2f}", f"{own.cpu_s / cost_of.cpu_s:.2f}")
        figures = f"{cost_of.wall_s:.1f}", f"{cost_of.cpu_s:.1f}", f"{cost_of.peak_gb:.2f}"
        console.print(kind, program, *figures, *ratios)
        if cost_of is own:
            ratios = "", ""
        table.add_row(kind, program, *figures, *ratios)


def _sluice(
    kind: str, run: str, home: Path, kafka: EmbeddedKafka, records: int, command: str
) -> Cost:
    # Each run has a pipeline of its own: with the markers of an earlier run, Sluice would take the
    # run's batches for batches that are already written.
    name, folder = f"bench_{kind}_{run}", home / run
    pipelines = folder / "pipelines"
    shutil.rmtree(folder, ignore_errors=True)
    pipelines.mkdir(parents=True)
    (pipelines / f"{name}.py").write_text(f"{HEAD.replace('{name}', name)}{KINDS[kind]}\n")
    config = {"bootstrap.servers": kafka.bootstrap}
    return cost.run(
        name, home=folder, pipelines=pipelines, kafka=config, records=records, command=command
    )


def _kafka_streams(kind: str, program: Path, kafka: EmbeddedKafka, home: Path, number: int) -> Cost:
    environment = os.environ | {
        "MODE": kind,
        "BOOTSTRAP": kafka.bootstrap,
        "APP_ID": f"operators-{kind}-{number}",
        "STATE_DIR": str(home / "state" / f"{kind}-{number}"),
        "T0_MS": str(time.time_ns() // 1_000_000),
    }
    classes = f"{program}/target/kstreams-orders-1.jar:{program}/target/lib/*"
    command = ["java", "-Xmx2g", "-cp", classes, "lab.Ops"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    result = re.search("^RESULT (.*)$", output.stdout, re.MULTILINE)
    if result is None:
        raise SystemExit(
            f"The Kafka Streams program failed:\n{output.stdout[-2000:]}{output.stderr[-2000:]}"
        )
    figures = json.loads(result[1])
    return Cost(figures["wall_ms"] / 1_000, figures["cpu_s"], figures["peak_rss_mb"] / 1_000)


def clicks(count: int, keys: int, chance: random.Random) -> Iterator[tuple[str, bytes, int]]:
    """Yield records with random keys, one per millisecond of event time.

    A tenth is up to two seconds out of order.
    """
    for number in range(count):
        timestamp = START_MS + number
        delay = chance.randrange(2_000)
        if chance.random() < 0.1:
            timestamp -= delay
        yield f"key-{chance.randrange(keys)}", b'{"number":%d}' % number, timestamp


if __name__ == "__main__":
    interrupt_on_sigterm()
    typer.run(main)
