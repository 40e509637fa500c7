"""Times the orders pipeline, and the same topology in Kafka Streams with `orders.py --peer FOLDER`.

Sluice is timed from the start of spark-submit, with empty state, until the ledger has a snapshot
with every order, so that all stores can be queried. Kafka Streams (exactly-once) is timed from the
start of its process until the last order has passed all aggregations. Both run alternately over the
same topic, and the ratio of each pair is computed. After the last run, all eight stores are
compared with totals computed independently.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from benchmarks.cost import Cost, Usage, run, stopping
from sluice.examples.orders.expected_totals import totals_of_topic
from sluice.examples.orders.sample_topics import create_order_topics, produce_orders
from sluice.local.broker import EmbeddedKafka
from sluice.provision import jars
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.remote.opening import open_shard
from tests.support.signals import interrupt_on_sigterm

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS = [
    "general_orders",
    "restaurant_orders",
    "general_orders_revenue",
    "restaurant_orders_revenue",
]
MADE = [*OUTPUTS, "orders_dead_letters", "orders_markers"]
PEER_BUSY_SECONDS = 900

console = Console(stderr=True)


def main(
    peer: Annotated[
        Path | None,
        typer.Option(help="Folder of the Kafka Streams program; default: time only Sluice."),
    ] = None,
    orders: Annotated[int, typer.Option(help="Number of orders.")] = 1_000_000,
    stores: Annotated[int, typer.Option(help="Number of stores.")] = 1_000,
    runs: Annotated[int, typer.Option(help="Number of runs of each program.")] = 3,
    at_least_once: Annotated[
        bool, typer.Option(help="Also time Sluice with at-least-once output.")
    ] = False,
) -> None:
    """Produce the orders, run the programs alternately, and print the times and their ratio."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        home = Path(folder)
        with EmbeddedKafka(home / "kafka", quick=False) as kafka:
            config = {"bootstrap.servers": kafka.bootstrap}
            with console.status(f"producing {orders:,} orders"):
                produce_orders(config, count=orders, stores=stores)
            rival = build_peer(peer, home) if peer else None
            pairs = []
            for number in range(1, runs + 1):
                pairs.append(_pair(home, kafka, rival, orders + stores, number, at_least_once))
                console.print(f"run {number} of {runs}: {_summary(pairs[-1])}")
            wrong = _differences(home / "sluice", config)
    _report(pairs, orders, wrong)
    raise typer.Exit(1 if wrong else 0)


def _pair(
    home: Path,
    kafka: EmbeddedKafka,
    rival: Path | None,
    records: int,
    number: int,
    at_least_once: bool,
) -> dict[str, Cost]:
    pair = {}
    if at_least_once:
        with console.status("Sluice, at least once"):
            pair["Sluice, at least once"] = _sluice(
                home / "sluice", kafka, records, "at_least_once"
            )
    with console.status("Sluice"):
        pair["Sluice"] = _sluice(home / "sluice", kafka, records)
    if rival is not None:
        with console.status("Kafka Streams, exactly_once_v2"):
            pair["Kafka Streams"] = _kafka_streams(rival, kafka, number)
    return pair


def _sluice(home: Path, kafka: EmbeddedKafka, records: int, delivery: str = "exactly_once") -> Cost:
    config = {"bootstrap.servers": kafka.bootstrap}
    shutil.rmtree(home, ignore_errors=True)
    _renew_outputs(config)
    return run(
        "orders",
        home=home,
        pipelines=ROOT / "spark_jobs",
        kafka=config,
        records=records,
        variables={"SLUICE_DELIVERY": delivery},
    )


def _renew_outputs(config: Mapping[str, str]) -> None:
    admin = AdminClient(dict(config))
    existing = admin.list_topics(timeout=10).topics
    for future in admin.delete_topics(
        [topic for topic in MADE if topic in existing] or ["none"]
    ).values():
        future.exception(30)
    while MADE[-1] in admin.list_topics(timeout=10).topics:
        time.sleep(0.1)
    create_order_topics(config)


def build_peer(peer: Path, home: Path) -> Path:
    """Build the peer in a copy of its folder, which can be written to."""
    copy = home / "peer"
    shutil.copytree(peer, copy)
    with console.status("building the Kafka Streams program"):
        subprocess.run(
            ["mvn", "-q", "-B", "package", "dependency:copy-dependencies", "-DoutputDirectory=target/lib",
             "-DincludeScope=runtime"], cwd=copy, check=True, stdout=sys.stderr,
        )  # fmt: skip
    return copy


def _kafka_streams(peer: Path, kafka: EmbeddedKafka, number: int) -> Cost:
    environment = os.environ | {
        # A new name for each run, because the consumer group of a stopped application keeps its
        # offsets for a while.
        "APP_ID": f"peer-{number}",
        "GUARANTEE": "exactly_once_v2",
        "TOPIC": "orders",
        "STORES_TOPIC": "stores",
        "BOOTSTRAP": kafka.bootstrap,
    }
    command = ["bash", "run.sh", "throughput"]
    process = subprocess.Popen(
        command,
        cwd=peer,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with stopping(process), Usage.of(process.pid) as usage:
        output, _ = process.communicate(timeout=PEER_BUSY_SECONDS)
    if process.returncode:
        raise SystemExit(f"The Kafka Streams program failed:\n{output[-3000:]}")
    times: dict[str, Any] = json.loads(output.splitlines()[-1])
    return Cost(times["wall_s"], times["cpu_s"], usage.peak_gb)


def _differences(home: Path, config: dict[str, str]) -> dict[str, int]:
    """Store → number of keys that differ from the totals that plain Python computes from the topic."""
    with console.status("comparing all eight stores with an independent computation"):
        expected = totals_of_topic(config).stores()
        with Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger:
            actual = {store: _contents(ledger, store) for store in expected}
    return {
        store: wrong
        for store, values in expected.items()
        if (
            wrong := sum(
                actual[store].get(key) != values.get(key)
                for key in values.keys() | actual[store].keys()
            )
        )
    }


def _contents(ledger: Ledger, name: str) -> dict[Any, Any]:
    snapshot = ledger.snapshots.latest("orders")
    assert snapshot is not None
    store = next(store for store in ledger.generations.stores("orders") if store.name == name)
    values: dict[Any, Any] = {}
    for worker in ledger.generations.workers("orders"):
        with open_shard(worker.location) as shard:
            for row in shard.scan(store.group_id, snapshot.batch, limit=sys.maxsize):
                key = row.key if store.window_ms is None else (row.key, row.window_start)
                values[key] = _value(row.value, store.store_column, name)
    return values


def _value(columns: str | None, store_column: int, store: str) -> Any:
    value = msgspec.json.decode(columns or "", type=list[msgspec.Raw])[store_column]
    if "count" in store:
        return int(bytes(value))
    revenue = msgspec.json.decode(value, type=dict[str, Decimal])
    return int(revenue["runningOrderCount"]), revenue["runningRevenue"]


def _summary(pair: dict[str, Cost]) -> str:
    times = ", ".join(
        f"{name} {result.wall_s:.1f} s ({result.cpu_s:.0f} CPU s, {result.peak_gb:.1f} GB)"
        for name, result in pair.items()
    )
    ratios = (f"Sluice / {name} {_ratio(pair, name):.2f}" for name in pair if name != "Sluice")
    return "; ".join((times, *ratios))


def _ratio(pair: dict[str, Cost], other: str) -> float:
    return pair["Sluice"].wall_s / pair[other].wall_s


def _report(pairs: list[dict[str, Cost]], orders: int, wrong: dict[str, int]) -> None:
    table = Table(title=f"{orders:,} orders, process start to published and queryable")
    table.add_column("")
    for figure in ("min s", "median s", "max s", "orders/s", "CPU s", "peak GB"):
        table.add_column(figure, justify="right")
    for name in pairs[0]:
        walls = sorted(pair[name].wall_s for pair in pairs)
        middle = statistics.median(walls)
        cpu = statistics.median(pair[name].cpu_s for pair in pairs)
        memory = max(pair[name].peak_gb for pair in pairs)
        table.add_row(
            name,
            *(f"{seconds:.1f}" for seconds in (walls[0], middle, walls[-1])),
            f"{orders / middle:,.0f}",
            f"{cpu:.0f}",
            f"{memory:.2f}",
        )
    Console().print(table)
    for name in pairs[0].keys() - {"Sluice"}:
        ratios = sorted(_ratio(pair, name) for pair in pairs)
        print(
            f"ratio Sluice / {name}: {statistics.median(ratios):.2f} (of {ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    print(f"WRONG: {wrong}" if wrong else "all eight stores match the independent computation")


if __name__ == "__main__":
    interrupt_on_sigterm()
    jars.folder(jars.Bundle.BROKER, settings().jars)
    typer.run(main)
