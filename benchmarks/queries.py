"""How many queries a second, and how quick: `queries.py --peer FOLDER`, with wrk on loopback.

Two state servers with a worker each and a thousand keys, as a program asks them; the same keys through Airflow's API
server, beside an empty route that asks nobody for a log-in; and two instances of the Kafka Streams program, with a
thousand keys of their own. The sides run in turn, several times: what is compared is the medians of each side. CPU is
that of the processes that answer, per request.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from sluice.provision import jars
from sluice.samples.topics import produce_orders
from sluice.settings import settings
from sluice.state.model import owner
from sluice.state.shard import Shard
from sluice.testing.kafka import EmbeddedKafka
from tests.airflow_server import AirflowServer
from tests.api.states import orders_states, totals
from tests.servers.hosts import TOKEN
from tests.servers.processes import ServerProcess, environment
from tests.states import States, ledger_url

ROOT = Path(__file__).resolve().parents[1]
KEYS = [f"store_{number}" for number in range(1_000)]
COUNT = "/v1/orders/count/general_orders"
SCRIPT = """local paths = {}
for line in io.lines(os.getenv("PATHS")) do paths[#paths + 1] = line end
math.randomseed(7)
local headers = {["Authorization"] = os.getenv("AUTHORIZATION")}
request = function() return wrk.format("GET", paths[math.random(#paths)], headers) end
done = function(summary, latency, requests)
  local wrong = summary.errors
  io.write(string.format('{"req_s":%.0f,"p50_ms":%.3f,"p99_ms":%.3f,"requests":%d,"bad":%d}\\n',
    summary.requests / (summary.duration / 1e6), latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    summary.requests, wrong.status + wrong.connect + wrong.read + wrong.write + wrong.timeout))
end
"""
OPEN_ROUTE = '''"""A plugin with one empty route, without a log-in: as quick as Airflow's API server can be."""

from airflow.plugins_manager import AirflowPlugin
from fastapi import FastAPI

app = FastAPI()


@app.get("/")
async def empty() -> dict[str, int]:
    return {}


class Open(AirflowPlugin):
    name = "open"
    fastapi_apps = [{"name": "open", "app": app, "url_prefix": "/open"}]
'''

console = Console(stderr=True)


@dataclass(frozen=True)
class Case:
    """What is asked of whom."""

    name: str
    address: str
    paths: Sequence[str]
    authorization: str = ""
    pids: Sequence[int] = ()


@dataclass(frozen=True)
class Result:
    """One measurement."""

    req_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU per request of the processes that answer, microseconds."""


def main(
    peer: Annotated[Path | None, typer.Option(help="Folder of the Kafka Streams program; without it, alone.")] = None,
    seconds: Annotated[int, typer.Option(help="How long each measurement takes.")] = 4,
    runs: Annotated[int, typer.Option(help="How often each is measured.")] = 3,
    connections: Annotated[int, typer.Option(help="Connections at a time.")] = 16,
    orders: Annotated[int, typer.Option(help="Orders for the Kafka Streams program.")] = 100_000,
    keys: Annotated[int, typer.Option(help="Also look keys up in a shard of so many, beside one of 10,000.")] = 0,
) -> None:
    """Measure, and print a table with the ratios."""
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is missing: on Debian, apt-get install wrk.")
    os.environ["SLUICE_SERVER_TOKEN"] = TOKEN
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, ExitStack() as stack:
        home = Path(folder)
        if keys:
            _look_up(home / "keys", keys)
        cases = [*stack.enter_context(_servers(home)), *stack.enter_context(_airflow(home))]
        found: dict[str, list[Result]] = {case.name: [] for case in cases}
        for number in range(runs):
            for case in cases:
                with console.status(f"run {number + 1} of {runs}: {case.name}"):
                    found[case.name].append(_measure(home, case, connections, seconds))
        stack.close()
        rival = _kafka_streams(home, peer, orders, seconds) if peer else {}
    _report({name: _median(results) for name, results in found.items()}, rival)


@contextmanager
def _servers(home: Path) -> Iterator[list[Case]]:
    ledger = ledger_url(f"sqlite:///{home}")
    _state(home)
    with ExitStack() as stack:
        servers = []
        for number in range(2):
            options = ("--workers", str(number), "--pipeline", "orders", "--rest")
            servers.append(stack.enter_context(ServerProcess(environment(home, home / "shards", ledger), *options)))
        address, pids = f"http://127.0.0.1:{servers[0].port}", [one.process.pid for one in servers]
        shares = [[f"{COUNT}?location_id={key}" for key in KEYS if owner(key, 2) == n] for n in range(2)]
        who = f"Bearer {TOKEN}"
        yield [
            Case("a key on its owner", address, shares[0], who, pids),
            Case("a key of the other server", address, shares[1], who, pids),
            Case("everything from both (1,000 keys)", address, [COUNT], who, pids),
        ]


def _state(home: Path) -> States:
    states = orders_states(f"sqlite:///{home}", workers=2)
    states.publish(list(totals("general", {key: (number, "12.50") for number, key in enumerate(KEYS)})))
    for number in range(2):
        target = home / "shards" / Path(states.location(number)).relative_to(f"sqlite:{home}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(states.location(number).removeprefix("sqlite:///")), target)
    return states


@contextmanager
def _airflow(home: Path) -> Iterator[list[Case]]:
    folder = home / "alone"
    folder.mkdir()
    _state(folder)
    plugins = home / "plugins"
    plugins.mkdir()
    shutil.copy(ROOT / "plugins" / "state_plugin.py", plugins)
    (plugins / "open_route.py").write_text(OPEN_ROUTE)
    with console.status("starting Airflow's API server"):
        server = AirflowServer(home / "airflow", plugins_folder=plugins, env={"SLUICE_HOME": str(folder)})
    with server:
        who = f"Bearer {server.token()}"
        pids = [one.pid for process in server.pids for one in _family(process)]
        paths = [f"{COUNT}?location_id={key}" for key in KEYS]
        yield [
            Case("an empty open route in Airflow", server.url, ["/open/"], "", pids),
            Case("a key through Airflow, logged in", server.url, paths, who, pids),
        ]


def _family(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def _measure(home: Path, case: Case, connections: int, seconds: int) -> Result:
    (home / "paths").write_text("\n".join(case.paths))
    (home / "wrk.lua").write_text(SCRIPT)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(home / "wrk.lua"), case.address]
    told = os.environ | {"PATHS": str(home / "paths"), "AUTHORIZATION": case.authorization}
    before = _cpu(case.pids)
    output = subprocess.run(command, env=told, capture_output=True, text=True, check=True).stdout
    used = _cpu(case.pids) - before
    said: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    if said["bad"]:
        raise SystemExit(f"{case.name}: {said['bad']} of {said['requests']} answers were wrong.")
    return Result(said["req_s"], said["p50_ms"], said["p99_ms"], used / said["requests"] * 1e6)


def _cpu(pids: Sequence[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def _kafka_streams(home: Path, peer: Path, orders: int, seconds: int) -> dict[str, Result]:
    """What two instances of the Kafka Streams program do with the same questions, as it measures itself."""
    copy = home / "peer"
    shutil.copytree(peer, copy)
    with EmbeddedKafka(home / "kafka") as kafka, console.status("Kafka Streams"):
        produce_orders({"bootstrap.servers": kafka.bootstrap}, count=orders, stores=len(KEYS), bad_share=0.0)
        told = os.environ | {
            "APP_ID": "peer", "TOPIC": "orders", "STORES_TOPIC": "stores", "BOOTSTRAP": kafka.bootstrap,
            "ORDERS": str(orders), "WRK_SECS": str(seconds), "BENCH_LOCK": str(home / "lock"),
        }  # fmt: skip
        for what in ("throughput", "query"):
            done = subprocess.run(
                ["bash", "run.sh", what], cwd=copy, env=told, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"Kafka Streams' run failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        said = json.loads(done.stdout.splitlines()[-1])
    names = {
        "a key on its owner": "local_key",
        "a key of the other server": "remote_key",
        "everything from both (1,000 keys)": "all_counts_2_instances",
    }
    found = {name: said[theirs]["c16"] for name, theirs in names.items() if theirs in said}
    return {name: Result(one["req_s"], one["p50_ms"], one["p99_ms"], 0.0) for name, one in found.items()}


def _look_up(folder: Path, keys: int) -> None:
    """Half of the look-ups in a shard of many keys take so long at most, beside one of few keys."""
    times = {}
    for many in (10_000, keys):
        with console.status(f"writing {many:,} keys"):
            shard = _shard(folder, many)
        with shard:
            times[many] = _middle(lambda key, shard=shard: shard.get(0, key, 100), many)  # type: ignore[misc]
    small, large = times[10_000], times[keys]
    print(f"get p50: {small * 1e6:.1f} us among 10,000 keys, {large * 1e6:.1f} us among {keys:,}: {large / small:.2f}")


def _shard(folder: Path, many: int) -> Shard:
    shard = Shard.create(f"sqlite:///{folder}/{many}.sqlite")
    for batch, start in enumerate(range(0, many, 1_000_000)):
        numbers = range(start, min(start + 1_000_000, many))
        shard.write(batch, ((0, f"key_{number:09}", -1, -1, f"[{number}]") for number in numbers))
    return shard


def _middle(get: Callable[[str], object], many: int, looks: int = 50_000) -> float:
    import random

    chance = random.Random(7)
    wanted = [f"key_{chance.randrange(many):09}" for _ in range(looks)]
    took = []
    for key in [*wanted, *wanted]:  # once to warm up
        began = time.perf_counter()
        found = get(key)
        took.append(time.perf_counter() - began)
        assert found is not None
    return statistics.median(took[looks:])


def _median(results: list[Result]) -> Result:
    return Result(*(statistics.median(getattr(one, name) for one in results) for name in Result.__dataclass_fields__))


def _report(found: dict[str, Result], rival: dict[str, Result]) -> None:
    table = Table(title="16 connections, wrk on the same machine")
    table.add_column("")
    for figure in ("req/s", "p50 ms", "p99 ms", "CPU us", "Kafka Streams req/s", "p99 ms", "ratio"):
        table.add_column(figure, justify="right")
    for name, one in found.items():
        theirs = rival.get(name)
        beside = (f"{theirs.req_s:,.0f}", f"{theirs.p99_ms:.1f}", f"{one.req_s / theirs.req_s:.2f}") if theirs else ()
        table.add_row(name, f"{one.req_s:,.0f}", f"{one.p50_ms:.1f}", f"{one.p99_ms:.1f}", f"{one.cpu_us:.0f}", *beside)
    Console(width=140).print(table)
    ours, empty = found["a key through Airflow, logged in"], found["an empty open route in Airflow"]
    print(f"a key through Airflow / an empty open route: {ours.req_s / empty.req_s:.2f}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if "--peer" in sys.argv or any(re.match("--peer=", one) for one in sys.argv):
        jars.folder(jars.Bundle.BROKER, settings().home / "jars")
    typer.run(main)
