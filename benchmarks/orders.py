"""The orders pipeline over a topic of its own, beside the same topology in Kafka Streams: `orders.py --peer FOLDER`.

What is timed for Sluice: from the start of spark-submit, with an empty state, until the ledger shows a snapshot with
every order, so that every store can be queried. For Kafka Streams, exactly-once: from the start of its process until
the last order has gone through all aggregations. The two run in turn over the same topic; what is compared is the
ratio of each pair. After the last run all eight stores are compared with totals computed by other means.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
import typer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from sluice.examples.orders.topics import create_order_topics, produce_orders
from sluice.examples.orders.totals import totals_of_topic
from sluice.provision import jars
from sluice.remote.opening import open_shard
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.testing.kafka import EmbeddedKafka, running

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = ["general_orders", "restaurant_orders", "general_orders_revenue", "restaurant_orders_revenue"]
MADE = [*OUTPUTS, "orders_dead_letters", "orders_markers"]
PEER_BUSY_SECONDS = 600
POLL_S = 0.02

console = Console(stderr=True)


@dataclass(frozen=True)
class Result:
    """One run: wall seconds until all is queryable, CPU seconds of everything but the broker by then."""

    wall_s: float
    cpu_s: float


def main(
    peer: Annotated[
        Path | None, typer.Option(help="Folder of the Kafka Streams program; without it Sluice alone.")
    ] = None,
    orders: Annotated[int, typer.Option(help="How many orders.")] = 1_000_000,
    stores: Annotated[int, typer.Option(help="How many stores they come from.")] = 1_000,
    runs: Annotated[int, typer.Option(help="How many runs of each.")] = 3,
    at_least_once: Annotated[bool, typer.Option(help="Beside exactly-once also at-least-once output.")] = False,
) -> None:
    """Produce the orders, run each side in turn, print the times and their ratio."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        home = Path(folder)
        with EmbeddedKafka(home / "kafka") as kafka:
            config = {"bootstrap.servers": kafka.bootstrap}
            with console.status(f"producing {orders:,} orders"):
                produce_orders(config, count=orders, stores=stores)
            rival = _build(peer, home) if peer else None
            pairs = []
            for number in range(1, runs + 1):
                pairs.append(_pair(home, kafka, rival, orders + stores, number, at_least_once))
                console.print(f"run {number} of {runs}: {_said(pairs[-1])}")
            wrong = _differences(home / "sluice", config)
    _report(pairs, orders, wrong)
    raise typer.Exit(1 if wrong else 0)


def _pair(
    home: Path, kafka: EmbeddedKafka, rival: Path | None, records: int, number: int, at_least_once: bool
) -> dict[str, Result]:
    pair = {}
    if at_least_once:
        with console.status("Sluice, at least once"):
            pair["Sluice, at least once"] = _sluice(home / "sluice", kafka, records, "at_least_once")
    with console.status("Sluice"):
        pair["Sluice"] = _sluice(home / "sluice", kafka, records)
    if rival is not None:
        with console.status("Kafka Streams, exactly_once_v2"):
            pair["Kafka Streams"] = _kafka_streams(rival, kafka, number)
    return pair


def _sluice(home: Path, kafka: EmbeddedKafka, records: int, delivery: str = "exactly_once") -> Result:
    config = {"bootstrap.servers": kafka.bootstrap}
    shutil.rmtree(home, ignore_errors=True)
    _renew_outputs(config)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")},
        "SLUICE_HOME": str(home),
        "SLUICE_JARS": str(settings().jars),
        "SLUICE_PIPELINES": str(ROOT / "spark_jobs"),
        "SLUICE_KAFKA": json.dumps(config),
        "SLUICE_DELIVERY": delivery,
    }
    command = [str(Path(sys.executable).parent / "sluice"), "run", "orders"]
    log = (home.parent / "sluice.log").open("w+")
    with _busy_without(kafka) as cpu, _process(command, environment, log) as (process, began):
        while _published(home / "ledger.sqlite") < records:
            if process.poll() not in (None, 0):
                log.seek(0)
                raise SystemExit(f"Sluice's run failed:\n{log.read()[-3000:]}")
            time.sleep(POLL_S)
        result = Result(time.monotonic() - began, cpu())
        process.wait()
    return result


def _published(ledger: Path) -> int:
    """How many records the newest snapshot holds."""
    if not ledger.exists():
        return 0
    with Ledger.open(f"sqlite:///{ledger}") as opened:
        return sum(sum(partitions.values()) for partitions in opened.positions("orders").values())


def _renew_outputs(config: Mapping[str, str]) -> None:
    admin = AdminClient(dict(config))
    there = admin.list_topics(timeout=10).topics
    for gone in admin.delete_topics([topic for topic in MADE if topic in there] or ["none"]).values():
        gone.exception(30)
    while MADE[-1] in admin.list_topics(timeout=10).topics:
        time.sleep(0.1)
    create_order_topics(config)


def _build(peer: Path, home: Path) -> Path:
    """A copy of the peer that can be written to; it builds itself at its first run."""
    copy = home / "peer"
    shutil.copytree(peer, copy)
    with console.status("building Kafka Streams' program"):
        subprocess.run(
            ["mvn", "-q", "-B", "package", "dependency:copy-dependencies", "-DoutputDirectory=target/lib",
             "-DincludeScope=runtime"], cwd=copy, check=True, stdout=sys.stderr,
        )  # fmt: skip
    return copy


def _kafka_streams(peer: Path, kafka: EmbeddedKafka, number: int) -> Result:
    environment = os.environ | {
        # A name of its own: the group of an application that was stopped lives on for a while, with its offsets.
        "APP_ID": f"peer-{number}",
        "GUARANTEE": "exactly_once_v2",
        "TOPIC": "orders",
        "STORES_TOPIC": "stores",
        "BOOTSTRAP": kafka.bootstrap,
    }
    done = subprocess.run(
        ["bash", "run.sh", "throughput"], cwd=peer, env=environment, capture_output=True, text=True,
        timeout=PEER_BUSY_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"Kafka Streams' run failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Result(found["wall_s"], found["cpu_s"])


@contextmanager
def _process(
    command: list[str], environment: dict[str, str], log: Any
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process, began
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.terminate()
            process.terminate()
            process.wait()


@contextmanager
def _busy_without(kafka: EmbeddedKafka) -> Iterator[Any]:
    """A function that gives the machine's CPU seconds since now, less the broker's."""
    broker = running(kafka.folder)
    assert broker is not None
    process = psutil.Process(broker.pid)

    def busy() -> float:
        machine, mine = psutil.cpu_times(), process.cpu_times()
        return machine.user + machine.nice + machine.system - mine.user - mine.system

    began = busy()
    yield lambda: busy() - began


def _differences(home: Path, config: dict[str, str]) -> dict[str, int]:
    """Per store how many keys differ from the totals that plain Python makes of the topic."""
    with console.status("comparing all eight stores with an independent computation"):
        expected = totals_of_topic(config).stores()
        with Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger:
            found = {store: _contents(ledger, store) for store in expected}
    return {
        store: wrong
        for store, values in expected.items()
        if (wrong := sum(found[store].get(key) != values.get(key) for key in values.keys() | found[store].keys()))
    }


def _contents(ledger: Ledger, name: str) -> dict[Any, Any]:
    snapshot = ledger.snapshots.latest("orders", "main")
    assert snapshot is not None
    store = next(one for one in ledger.jobs.stores("orders") if one.name == name)
    values: dict[Any, Any] = {}
    for worker in ledger.jobs.workers("orders", "main"):
        with open_shard(worker.location) as shard:
            for group_id in shard.scan(store.group_id, snapshot.batch, limit=sys.maxsize):
                key = group_id.key if store.window_ms is None else (group_id.key, group_id.window_start)
                values[key] = _value(group_id.value, store.store_column, name)
    return values


def _value(group_id: str | None, store_column: int, store: str) -> Any:
    value = msgspec.json.decode(group_id or "", type=list[msgspec.Raw])[store_column]
    if "count" in store:
        return int(bytes(value))
    found = msgspec.json.decode(value, type=dict[str, Decimal])
    return int(found["runningOrderCount"]), found["runningRevenue"]


def _said(pair: dict[str, Result]) -> str:
    said = ", ".join(f"{name} {result.wall_s:.1f} s ({result.cpu_s:.0f} CPU s)" for name, result in pair.items())
    others = (f"Sluice / {name} {_ratio(pair, name):.2f}" for name in pair if name != "Sluice")
    return "; ".join((said, *others))


def _ratio(pair: dict[str, Result], other: str) -> float:
    return pair["Sluice"].wall_s / pair[other].wall_s


def _report(pairs: list[dict[str, Result]], orders: int, wrong: dict[str, int]) -> None:
    table = Table(title=f"{orders:,} orders, process start to published and queryable")
    table.add_column("")
    for figure in ("min s", "median s", "max s", "orders/s", "CPU s"):
        table.add_column(figure, justify="right")
    for name in pairs[0]:
        walls = sorted(pair[name].wall_s for pair in pairs)
        middle = statistics.median(walls)
        cpu = statistics.median(pair[name].cpu_s for pair in pairs)
        table.add_row(
            name, *(f"{s:.1f}" for s in (walls[0], middle, walls[-1])), f"{orders / middle:,.0f}", f"{cpu:.0f}"
        )
    Console().print(table)
    for name in pairs[0].keys() - {"Sluice"}:
        ratios = sorted(_ratio(pair, name) for pair in pairs)
        print(f"ratio Sluice / {name}: {statistics.median(ratios):.2f} (of {ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"WRONG: {wrong}" if wrong else "all eight stores equal the independent computation")


if __name__ == "__main__":
    # Told to stop, it still stops what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    jars.folder(jars.Bundle.BROKER, settings().home / "jars")
    typer.run(main)
