"""What it costs to look at many pipelines: `monitoring.py [--pipelines N] [--batches N]`.

Measures the overview, which the page shows; `/metrics`; and Airflow's parsing of the DAG file, for
the first time and again. A real broker has the topics. The costs are CPU seconds, which depend less
on what else the machine does, and the statements that the ledger gets, which must not grow with the
number of pipelines.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import event

from sluice.local.broker import EmbeddedKafka
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from tests.servers.hosts import TOKEN, Host
from tests.support.airflow_database import provide_database
from tests.support.api_client import Api
from tests.support.ports import free_port
from tests.support.signals import interrupt_on_sigterm
from tests.support.states import States, make_snapshot

PIPELINE = """
from msgspec import Struct
from sluice import Pipeline

class Sale(Struct):
    shop: str
    amount: int

pipeline = Pipeline("{name}", workers=2)
sales = pipeline.stream("{name}", value=Sale)
sales.group_by("shop").aggregate(store="{name}_totals", sales="count(*)")
"""
# Every parse of a DAG file needs these imports, whatever the file contains, so they come before the
# measured part.
PARSE = """
import sys, time
from pathlib import Path
import airflow.sdk
from sluice.orchestration.dags import pipeline_dags
begun = time.process_time()
dags = pipeline_dags(Path(sys.argv[1]))
print(len(dags), time.process_time() - begun)
"""
PARTITIONS = 4


@dataclass(frozen=True)
class Looked:
    """The cost of one request or one parse."""

    name: str
    cpu_s: float
    statements: int | None = None


def fill(database: str, names: list[str], batches: int) -> Ledger:
    """Return a ledger in which every pipeline has published batches in the last hour."""
    begun = datetime.now(UTC) - timedelta(hours=1)
    for name in names:
        states = States(database, pipeline=name, ledger_at=f"{database}/ledger.sqlite")
        # No records are unread, because the topics are empty, too.
        positions = {name: dict.fromkeys(map(str, range(PARTITIONS)), 0)}
        states.publish({"a": "[1]"}, positions=positions, published_at=begun)
        for batch in range(1, batches):
            published_at = begun + timedelta(hours=1) * batch / batches
            counts = {"read": 10, "applied": 9, "dead_letter/contract": 1}
            snapshot = make_snapshot(
                batch, pipeline=name, positions=positions, published_at=published_at, counts=counts
            )
            assert states.ledger.snapshots.publish(snapshot)
        states.ledger.close()
    return Ledger.open(f"{database}/ledger.sqlite")


def look(name: str, ledger: Ledger, ask: Callable[[], Any]) -> Looked:
    """Measure the second of two requests, because the first one opens connections."""
    ask()
    statements = 0

    def count(*_: object) -> None:
        nonlocal statements
        statements += 1

    event.listen(ledger.engine, "before_cursor_execute", count)
    begun = time.process_time()
    ask()
    cpu_s = time.process_time() - begun
    event.remove(ledger.engine, "before_cursor_execute", count)
    return Looked(name, cpu_s, statements)


def parse(name: str, folder: Path, home: Path) -> Looked:
    """Parse the DAG file in a new process, as Airflow does, and measure it without the imports."""
    environment = os.environ | {
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "SLUICE_HOME": str(home),
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    all_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    _, own_s = done.stdout.split()[-2:]
    # The remaining CPU time is that of the imports, and of the processes in which the first parse
    # imports the pipelines' files.
    others_s = all_s - float(own_s)
    return Looked(f"{name} (and imports, other processes: {others_s:.1f} s)", float(own_s))


def measure(pipelines: int, batches: int, kafka: EmbeddedKafka, folder: Path) -> list[Looked]:
    names = [f"p{number}" for number in range(pipelines)]
    files = folder / "pipelines"
    files.mkdir(parents=True)
    for name in names:
        (files / f"{name}.py").write_text(PIPELINE.format(name=name))
    kafka.create_topics(dict.fromkeys(names, PARTITIONS))
    ledger = fill(f"sqlite:///{folder}", names, batches)
    api = Api(ledger, kafka={"bootstrap.servers": kafka.bootstrap})
    looked = [look("overview", ledger, lambda: api.get("/v1/overview"))]
    host = Host(ledger, folder / "host").start(pipeline=names[0])
    looked.append(look("/metrics", ledger, lambda: host.get("/metrics")))
    host.stop()
    provide_database(folder / "airflow" / "airflow.db")
    looked.append(parse("first parse", files, folder))
    looked.append(parse("next parse", files, folder))
    return looked


def main(
    pipelines: Annotated[int, typer.Option(min=2)] = 60,
    batches: Annotated[
        int, typer.Option(min=1, help="Batches of each pipeline in the last hour.")
    ] = 300,
) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        EmbeddedKafka(Path(name) / "kafka", free_port()) as kafka,
    ):
        os.environ |= {
            "SLUICE_SERVER_TOKEN": TOKEN,
            "SLUICE_KAFKA": f'{{"bootstrap.servers": "{kafka.bootstrap}"}}',
        }
        settings.cache_clear()
        table = Table("", "pipelines", "CPU s", "statements", box=None)
        for number in (1, pipelines):
            for looked in measure(number, batches, kafka, Path(name) / str(number)):
                statements = "" if looked.statements is None else str(looked.statements)
                table.add_row(looked.name, str(number), f"{looked.cpu_s:.3f}", statements)
        Console().print(table)


if __name__ == "__main__":
    interrupt_on_sigterm()
    typer.run(main)
