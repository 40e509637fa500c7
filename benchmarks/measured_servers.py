"""The measured servers: state servers, Airflow's API server, and the Kafka Streams program."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.wrk import Case
from sluice.examples.orders.sample_topics import produce_orders
from sluice.local.broker import EmbeddedKafka
from sluice.values.key_owners import owner
from tests.api.states import orders_states, totals
from tests.servers.hosts import TOKEN
from tests.servers.processes import ServerProcess, environment
from tests.support.airflow_server import AirflowServer
from tests.support.ports import free_port
from tests.support.states import States, ledger_url

OWN_KEY = "a key of the queried server"
REMOTE_KEY = "a key of the other server"
EVERYTHING = "all 1,000 keys from both servers"
THROUGH_AIRFLOW = "a key through Airflow, logged in"
OPEN = "an empty open route in Airflow"
THEIR_OWN_KEY = f"Kafka Streams: {OWN_KEY}"
THEIR_REMOTE_KEY = f"Kafka Streams: {REMOTE_KEY}"
THEIR_EVERYTHING = f"Kafka Streams: {EVERYTHING}"

ROOT = Path(__file__).resolve().parents[1]
KEYS = [f"store_{number}" for number in range(1_000)]
COUNT = "/v1/orders/count/general_orders"
THEIR_COUNT = "/count/general"
READY_SECONDS = 300
_AT_ONCE = 1_000_000
_LOOKS = 20_000
# The orders are from 2022. By default, the broker would delete the changelogs of their windows
# within minutes.
_KEEP = "windowstore.changelog.additional.retention.ms=315360000000"
OPEN_ROUTE = '''"""An empty route without a log-in, to measure the limit of Airflow's API server."""

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


@contextmanager
def state_servers(home: Path) -> Iterator[list[Case]]:
    """Start two state servers with one worker each, and with a process for each core."""
    ledger = ledger_url(f"sqlite:///{home}")
    _publish_orders(home)
    with ExitStack() as stack:
        variables = environment(home, home / "shards", ledger)
        ports: list[int] = []
        pids: list[int] = []
        for number in range(2):
            options = ["--workers", str(number), "--pipeline", "orders", "--rest"]
            options += ["--processes", str(os.cpu_count())]
            server = stack.enter_context(ServerProcess(variables, *options))
            ports.append(server.port)
            pids += _group(server.process.pid)
        address = f"http://127.0.0.1:{ports[0]}"
        shares: list[list[str]] = [[], []]
        for key in KEYS:
            shares[owner(key, 2)].append(f"{COUNT}?location_id={key}")
        authorization = f"Bearer {TOKEN}"
        yield [
            Case(OWN_KEY, address, shares[0], authorization, pids),
            Case(REMOTE_KEY, address, shares[1], authorization, pids),
            Case(EVERYTHING, address, [COUNT], authorization, pids),
        ]


@contextmanager
def state_server_with_keys(home: Path, count: int) -> Iterator[Case]:
    """Start a state server with one worker that has `count` keys. Random keys are queried."""
    home.mkdir()
    states = orders_states(f"sqlite:///{home}", workers=1)
    for start in range(0, count, _AT_ONCE):
        values: dict[str, tuple[int, str]] = {}
        for number in range(start, min(start + _AT_ONCE, count)):
            values[f"key_{number:09}"] = number - start, "12.50"
        states.publish(totals("general", values))
    chance = random.Random(7)
    paths = [f"{COUNT}?location_id=key_{chance.randrange(count):09}" for _ in range(_LOOKS)]
    variables = environment(home, home, ledger_url(f"sqlite:///{home}"))
    with ServerProcess(variables, "--workers", "0", "--pipeline", "orders", "--rest") as server:
        name, address = f"a key among {count:,}", f"http://127.0.0.1:{server.port}"
        yield Case(name, address, paths, f"Bearer {TOKEN}", [server.process.pid])


def _publish_orders(home: Path) -> States:
    states = orders_states(f"sqlite:///{home}", workers=2)
    values = {key: (number, "12.50") for number, key in enumerate(KEYS)}
    states.publish(list(totals("general", values)))
    for number in range(2):
        target = home / "shards" / Path(states.location(number)).relative_to(f"sqlite:{home}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(states.location(number).removeprefix("sqlite:///")), target)
    return states


@contextmanager
def airflow(home: Path) -> Iterator[list[Case]]:
    """Start Airflow's API server with the plugin, and with an open route for comparison."""
    folder = home / "alone"
    folder.mkdir()
    _publish_orders(folder)
    plugins = home / "plugins"
    plugins.mkdir()
    shutil.copy(ROOT / "plugins" / "state_plugin.py", plugins)
    (plugins / "open_route.py").write_text(OPEN_ROUTE)
    server = AirflowServer(
        home / "airflow", plugins_folder=plugins, env={"SLUICE_HOME": str(folder)}
    )
    with server:
        authorization = f"Bearer {server.token()}"
        pids: list[int] = []
        for parent in server.pids:
            pids += _group(parent)
        paths = [f"{COUNT}?location_id={key}" for key in KEYS]
        yield [
            Case(OPEN, server.url, ["/open/"], "", pids),
            Case(THROUGH_AIRFLOW, server.url, paths, authorization, pids),
        ]


def _group(pid: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    descendants = psutil.Process(pid).children(recursive=True)
    return [pid, *[process.pid for process in descendants]]


@contextmanager
def kafka_streams(home: Path, program: Path, orders: int) -> Iterator[list[Case]]:
    """Start two instances of the Kafka Streams program, and let them read a thousand keys."""
    copy = home / "peer"
    shutil.copytree(program, copy)
    with ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka(home / "kafka", quick=False))
        produce_orders(
            {"bootstrap.servers": kafka.bootstrap}, count=orders, stores=len(KEYS), bad_share=0.0
        )
        variables = os.environ | {
            "APP_ID": "peer",
            "TOPIC": "orders",
            "STORES_TOPIC": "stores",
            "BOOTSTRAP": kafka.bootstrap,
            "ORDERS": str(orders),
            "BENCH_LOCK": str(home / "lock"),
            "STREAMS_CONF": _KEEP,
        }
        # Build the program and let it read everything once, so that both instances start from its
        # changelogs.
        run = subprocess.run(
            ["bash", "run.sh", "throughput"],
            cwd=copy,
            env=variables,
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise SystemExit(
                f"The Kafka Streams program failed:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
            )
        shutil.rmtree(copy / "state", ignore_errors=True)
        ports = [free_port(), free_port()]
        pids = [stack.enter_context(_instance(copy, variables, port)) for port in ports]
        for port in ports:
            _wait(port, orders)
        shares: list[list[str]] = []
        for port in ports:
            keys = _get(port, f"/local{THEIR_COUNT}")
            shares.append([f"{THEIR_COUNT}/{key}" for key in keys])
        address = f"http://localhost:{ports[0]}"
        yield [
            Case(THEIR_OWN_KEY, address, shares[0], "", pids),
            Case(THEIR_REMOTE_KEY, address, shares[1], "", pids),
            Case(THEIR_EVERYTHING, address, [THEIR_COUNT], "", pids),
        ]


@contextmanager
def _instance(folder: Path, variables: dict[str, str], port: int) -> Iterator[int]:
    """Start an instance with the program's own command, and yield its process id."""
    command = [
        "java",
        "-Xmx2g",
        "-Dsun.net.httpserver.nodelay=true",
        "-Dsun.net.httpserver.maxIdleConnections=512",
        "-cp",
        f"{folder}/target/kstreams-orders-1.jar:{folder}/target/lib/*",
        "lab.App",
    ]
    own = {"PORT": str(port), "STATE_DIR": str(folder / "state" / str(port)), "BENCH": "0"}
    with (folder / f"{port}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=variables | own, stdout=log, stderr=log)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _wait(port: int, orders: int) -> None:
    """Wait until an instance counts all orders, including those of the other instance."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        # An instance that is starting or moving its tasks does not answer.
        with suppress(OSError, ValueError):
            general, restaurant = _get(port, "/count/general"), _get(port, "/count/restaurant")
            if sum(general.values()) + sum(restaurant.values()) >= orders:
                return
        time.sleep(0.5)
    raise SystemExit(f"The Kafka Streams instance on port {port} did not count {orders:,} orders.")


def _get(port: int, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=30) as answer:
        content: dict[str, Any] = json.load(answer)
    return content
