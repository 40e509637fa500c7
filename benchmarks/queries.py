"""Measures throughput and latency of queries with wrk on this machine: `queries.py --peer FOLDER`.

The servers are two state servers with one worker each, a process for each core, and a thousand
keys; Airflow's API server with the same keys, and with an empty route without a log-in for
comparison; and two instances of the Kafka Streams program with a thousand keys of their own. All of
them run all the time. Each round measures every case once, both sides of a pair directly after each
other; the order of the sides alternates. The output has the medians of the rounds, and the medians
of the ratios within rounds. CPU is the time per request of the processes that answer.
"""

from __future__ import annotations

import os
import shutil
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

from benchmarks import measured_servers
from benchmarks.measured_servers import EVERYTHING, OPEN, OWN_KEY, REMOTE_KEY, THROUGH_AIRFLOW
from benchmarks.wrk import Case, Result, measure, median
from sluice.provision import jars
from sluice.settings import settings
from tests.servers.hosts import TOKEN
from tests.support.signals import interrupt_on_sigterm

BESIDE = {
    OWN_KEY: measured_servers.THEIR_OWN_KEY,
    REMOTE_KEY: measured_servers.THEIR_REMOTE_KEY,
    EVERYTHING: measured_servers.THEIR_EVERYTHING,
    THROUGH_AIRFLOW: OPEN,
}
"""Case of Sluice → the case with which it is compared."""
WARM_UP_SECONDS = 3
FEW_KEYS = 10_000
ROUNDS_OF_LOOKS = 6

console = Console(stderr=True)

Rounds = list[dict[str, Result]]


def main(
    peer: Annotated[
        Path | None,
        typer.Option(help="Folder of the Kafka Streams program; default: measure only Sluice."),
    ] = None,
    seconds: Annotated[int, typer.Option(help="Duration of each measurement.")] = 4,
    runs: Annotated[int, typer.Option(help="Number of rounds.")] = 5,
    connections: Annotated[int, typer.Option(help="Number of concurrent connections.")] = 16,
    orders: Annotated[
        int, typer.Option(help="Number of orders for the Kafka Streams program.")
    ] = 100_000,
    keys: Annotated[
        int, typer.Option(help="Also compare look-ups among this many keys with 10,000.")
    ] = 0,
) -> None:
    """Measure, and print the figures, the ratios, and whether the targets are met."""
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed. On Debian: apt-get install wrk.")
    os.environ["SLUICE_SERVER_TOKEN"] = TOKEN
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, ExitStack() as stack:
        home = Path(folder)
        look_ups = look_up(home, keys, connections, seconds) if keys else None
        with console.status("starting the servers"):
            sides = [measured_servers.state_servers(home), measured_servers.airflow(home)]
            if peer:
                sides.append(measured_servers.kafka_streams(home, peer, orders))
            cases: dict[str, Case] = {}
            for side in sides:
                for case in stack.enter_context(side):
                    cases[case.name] = case
        for case in cases.values():
            measure(home, case, connections, WARM_UP_SECONDS)
        rounds = [_round(home, cases, number, connections, seconds) for number in range(runs)]
    _print_figures(rounds, connections)
    for target in targets(rounds, look_ups):
        print(target)


def _round(
    home: Path, cases: dict[str, Case], number: int, connections: int, seconds: int
) -> dict[str, Result]:
    results = {}
    for pair in BESIDE.items():
        for name in pair if number % 2 == 0 else reversed(pair):
            if name in cases:
                with console.status(f"round {number + 1}: {name}"):
                    results[name] = measure(home, cases[name], connections, seconds)
    return results


def median_of(name: str, rounds: Rounds) -> Result:
    """Return the medians of a case's figures."""
    return median([results[name] for results in rounds])


def ratio(rounds: Rounds, ours: str) -> float | None:
    """Return a pair's ratio of requests per second: the median of all rounds.

    Return None if the other side of the pair was not measured.
    """
    ratios: list[float] = []
    for results in rounds:
        theirs = results.get(BESIDE[ours])
        if theirs is not None:
            ratios.append(results[ours].req_s / theirs.req_s)
    return statistics.median(ratios) if ratios else None


@dataclass(frozen=True)
class Target:
    """A target for a figure, and the measured value."""

    what: str
    bound: float
    measured: float | None
    """None if the figure was not measured."""
    unit: str = ""
    at_most: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None if the figure was not measured."""
        if self.measured is None:
            return None
        if self.at_most:
            return self.measured <= self.bound
        return self.measured >= self.bound

    def __str__(self) -> str:
        verdict, measured = "not measured", ""
        if self.measured is not None:
            verdict = "met" if self.is_met else "NOT MET"
            measured = f" {self.measured:,.2f}{self.unit},"
        bound = f"{'<=' if self.at_most else '>='} {self.bound:,g}{self.unit}"
        return f"{verdict:>12}: {self.what}:{measured} target {bound}"


def targets(rounds: Rounds, look_ups: float | None) -> Iterator[Target]:
    """Yield the targets for queries."""
    own, through = median_of(OWN_KEY, rounds), median_of(THROUGH_AIRFLOW, rounds)
    yield Target(OWN_KEY, 10_000, own.req_s, " req/s")
    yield Target(f"{OWN_KEY}, p99", 5, own.p99_ms, " ms", at_most=True)
    yield Target(f"{OWN_KEY} / Kafka Streams' own key", 0.9, ratio(rounds, OWN_KEY))
    yield Target(f"{REMOTE_KEY} / Kafka Streams' remote key", 1, ratio(rounds, REMOTE_KEY))
    yield Target(f"{EVERYTHING} / Kafka Streams' from both", 2, ratio(rounds, EVERYTHING))
    yield Target(f"{THROUGH_AIRFLOW} / {OPEN}", 0.8, ratio(rounds, THROUGH_AIRFLOW))
    yield Target(f"{THROUGH_AIRFLOW}, p99", 50, through.p99_ms, " ms", at_most=True)
    yield Target("get p50 among many keys / among 10,000", 1.3, look_ups, at_most=True)


def _print_figures(rounds: Rounds, connections: int) -> None:
    rounds_text = f"medians of {len(rounds)} rounds"
    table = Table(title=f"{connections} connections, wrk on the same machine; {rounds_text}")
    table.add_column("")
    for figure in ("req/s", "p50 ms", "p99 ms", "CPU us", "ratio"):
        table.add_column(figure, justify="right")
    for ours, theirs in BESIDE.items():
        for name in (ours, theirs):
            if name in rounds[0]:
                result = median_of(name, rounds)
                compared = ratio(rounds, ours)
                ratio_text = ""
                if name == ours and compared is not None:
                    ratio_text = f"{compared:.2f}"
                figures = (
                    f"{result.req_s:,.0f}",
                    f"{result.p50_ms:.2f}",
                    f"{result.p99_ms:.2f}",
                    f"{result.cpu_us:.0f}",
                )
                table.add_row(name, *figures, ratio_text)
    Console(width=140).print(table)


def look_up(home: Path, keys: int, connections: int, seconds: int) -> float:
    """Return the median latency of look-ups among many keys, divided by that among few keys.

    Both are measured alternately.
    """
    cases: list[Case] = []
    latencies: dict[str, list[float]] = {}
    with ExitStack() as stack:
        with console.status(f"writing {keys:,} keys"):
            for count in (FEW_KEYS, keys):
                server = measured_servers.state_server_with_keys(home / f"of-{count}", count)
                cases.append(stack.enter_context(server))
        for number in range(ROUNDS_OF_LOOKS):
            for case in cases:
                with console.status(case.name):
                    result = measure(home, case, connections, seconds)
                # The first round only warms up, so leave it out.
                if number:
                    latencies.setdefault(case.name, []).append(result.p50_ms)
    few, many = [statistics.median(latencies[case.name]) for case in cases]
    print(f"get p50: {few:.2f} ms among {FEW_KEYS:,} keys, {many:.2f} ms among {keys:,}")
    return many / few


if __name__ == "__main__":
    interrupt_on_sigterm()
    if any(argument.startswith("--peer") for argument in sys.argv):
        jars.folder(jars.Bundle.BROKER, settings().jars)
    typer.run(main)
