"""How many queries a second, and how quick: `queries.py --peer FOLDER`, with wrk on loopback.

Two state servers with a worker each and a thousand keys, as a program asks them; the same keys through Airflow's API
server, beside an empty route that asks nobody for a log-in; and two instances of the Kafka Streams program, with a
thousand keys of their own. All of them run all the while. Each round measures every case once, one side of a pair
right after the other, and which side is first changes from round to round; what is printed is the medians of the
rounds, and the median of the ratios within rounds. CPU is that of the processes that answer, per request.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import sides
from benchmarks.sides import EVERYTHING, OPEN, OWN_KEY, REMOTE_KEY, THROUGH_AIRFLOW
from benchmarks.wrk import Case, Result, measure, median
from sluice.provision import jars
from sluice.settings import settings
from tests.servers.hosts import TOKEN

BESIDE = {
    OWN_KEY: sides.THEIR_OWN_KEY,
    REMOTE_KEY: sides.THEIR_REMOTE_KEY,
    EVERYTHING: sides.THEIR_EVERYTHING,
    THROUGH_AIRFLOW: OPEN,
}
"""Which cases are compared."""
WARM_UP_SECONDS = 3
FEW_KEYS = 10_000
ROUNDS_OF_LOOKS = 6

console = Console(stderr=True)

Rounds = list[dict[str, Result]]


def main(
    peer: Annotated[Path | None, typer.Option(help="Folder of the Kafka Streams program; without it, alone.")] = None,
    seconds: Annotated[int, typer.Option(help="How long each measurement takes.")] = 4,
    runs: Annotated[int, typer.Option(help="How many rounds.")] = 5,
    connections: Annotated[int, typer.Option(help="Connections at a time.")] = 16,
    orders: Annotated[int, typer.Option(help="Orders for the Kafka Streams program.")] = 100_000,
    keys: Annotated[int, typer.Option(help="Also ask for keys among so many, beside 10,000.")] = 0,
) -> None:
    """Measure, and print the figures, the ratios, and whether what is wanted is held."""
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is missing: on Debian, apt-get install wrk.")
    os.environ["SLUICE_SERVER_TOKEN"] = TOKEN
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, ExitStack() as stack:
        home = Path(folder)
        look_ups = look_up(home, keys, connections, seconds) if keys else None
        with console.status("starting the sides"):
            started = [sides.state_servers(home), sides.airflow(home)]
            started += [sides.kafka_streams(home, peer, orders)] if peer else []
            cases = {case.name: case for side in started for case in stack.enter_context(side)}
        for case in cases.values():
            measure(home, case, connections, WARM_UP_SECONDS)
        rounds = [_round(home, cases, number, connections, seconds) for number in range(runs)]
    _print_figures(rounds, connections)
    for target in targets(rounds, look_ups):
        print(target)


def _round(home: Path, cases: dict[str, Case], number: int, connections: int, seconds: int) -> dict[str, Result]:
    found = {}
    for ours, theirs in BESIDE.items():
        for name in (ours, theirs) if number % 2 == 0 else (theirs, ours):
            if name in cases:
                with console.status(f"round {number + 1}: {name}"):
                    found[name] = measure(home, cases[name], connections, seconds)
    return found


def ratio(rounds: Rounds, ours: str) -> float | None:
    """Requests a second of one side by those of the other: the median over the rounds; None if there is no other."""
    pairs = [(one[ours].req_s, one[BESIDE[ours]].req_s) for one in rounds if BESIDE[ours] in one]
    return statistics.median(mine / theirs for mine, theirs in pairs) if pairs else None


@dataclass(frozen=True)
class Target:
    """What is wanted of a figure, and what it is."""

    what: str
    wanted: float
    found: float | None
    """None if it was not measured."""
    unit: str = ""
    at_most: bool = False

    @property
    def is_held(self) -> bool | None:
        """Whether it is as wanted; None if it was not measured."""
        if self.found is None:
            return None
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted

    def __str__(self) -> str:
        word = {True: "held", False: "NOT HELD", None: "not measured"}[self.is_held]
        found = "" if self.found is None else f" {self.found:,.2f}{self.unit},"
        bound = f"{'<=' if self.at_most else '>='} {self.wanted:,g}{self.unit}"
        return f"{word:>12}: {self.what}:{found} wanted {bound}"


def targets(rounds: Rounds, look_ups: float | None) -> Iterator[Target]:
    """Everything that is wanted of queries."""
    own, through = (median([one[name] for one in rounds]) for name in (OWN_KEY, THROUGH_AIRFLOW))
    yield Target(f"{OWN_KEY}, one process", 10_000, own.req_s, " req/s")
    yield Target(f"{OWN_KEY}, p99", 5, own.p99_ms, " ms", at_most=True)
    yield Target(f"{REMOTE_KEY} / Kafka Streams' remote key", 1, ratio(rounds, REMOTE_KEY))
    yield Target(f"{EVERYTHING} / Kafka Streams' from both", 2, ratio(rounds, EVERYTHING))
    yield Target(f"{THROUGH_AIRFLOW} / {OPEN}", 0.8, ratio(rounds, THROUGH_AIRFLOW))
    yield Target(f"{THROUGH_AIRFLOW}, p99", 50, through.p99_ms, " ms", at_most=True)
    yield Target("get p50 among many keys / among 10,000", 1.3, look_ups, at_most=True)


def _print_figures(rounds: Rounds, connections: int) -> None:
    table = Table(title=f"{connections} connections, wrk on the same machine; medians of {len(rounds)} rounds")
    table.add_column("")
    for figure in ("req/s", "p50 ms", "p99 ms", "CPU us", "ratio"):
        table.add_column(figure, justify="right")
    for ours, theirs in BESIDE.items():
        for name in (ours, theirs):
            if name in rounds[0]:
                one = median([found[name] for found in rounds])
                beside = ratio(rounds, ours) if name == ours else None
                said = "" if beside is None else f"{beside:.2f}"
                row = f"{one.req_s:,.0f}", f"{one.p50_ms:.2f}", f"{one.p99_ms:.2f}", f"{one.cpu_us:.0f}", said
                table.add_row(name, *row)
    Console(width=140).print(table)


def look_up(home: Path, keys: int, connections: int, seconds: int) -> float:
    """How long half of the look-ups take at most among many keys, by how long among few; measured in turn."""
    with ExitStack() as stack:
        with console.status(f"writing {keys:,} keys"):
            cases = [stack.enter_context(sides.among(home / f"of-{many}", many)) for many in (FEW_KEYS, keys)]
        took: list[list[float]] = [[], []]
        for number in range(ROUNDS_OF_LOOKS):
            for case, times in zip(cases, took, strict=True):
                with console.status(case.name):
                    times += [measure(home, case, connections, seconds).p50_ms][:number]  # the first one warms up
    few, large = (statistics.median(times) for times in took)
    print(f"get p50: {few:.2f} ms among {FEW_KEYS:,} keys, {large:.2f} ms among {keys:,}")
    return large / few


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if any(one.startswith("--peer") for one in sys.argv):
        jars.folder(jars.Bundle.BROKER, settings().home / "jars")
    typer.run(main)
