"""Shows how the cost of a run grows, in the series of `SERIES`: `scaling.py records keys`.

Every run is a `sluice run` of its own, with a real broker on this machine, and is measured from the
start of its process until its records can be queried. CPU seconds and memory are those of all its
processes without the broker.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.cost import SLUICE, Cost, environment, of_command, run
from benchmarks.scaling_model import PARTS, PROGRAMS, Model, Shape
from sluice.examples.orders.records import orders
from sluice.examples.orders.sample_topics import produce_orders
from sluice.kafka.topics import produce
from sluice.local.broker import EmbeddedKafka
from sluice.provision import jars
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.values.phrases import counted
from sluice.values.sink_tables import connection_variable
from tests.cluster.standalone import spark_cluster
from tests.support.postgres import new_database, postgres_server
from tests.support.signals import interrupt_on_sigterm

ROOT = Path(__file__).resolve().parents[1]
NAME = "scaling"
START_MS = 1_670_000_000_000
PIPELINE = '''"""A pipeline of the benchmark."""

from msgspec import Struct

from sluice import Pipeline


class Value(Struct):
    """The values of all records."""

    {fields}


pipeline = Pipeline("scaling", workers={workers})
values = pipeline.stream("scaling", value=Value)
{stores}
'''
FEW = 1_000
"""The number of records of a small run."""
FITTED_RECORDS = 200_000
MODEL = "model"
"""The argument that selects the comparison with the model; all other arguments select series."""

console = Console(stderr=True)
Records = Iterable[tuple[str, bytes]]
"""The key and the value of each record."""


@dataclass
class Measured:
    """A finished run."""

    name: str
    records: int
    cost: Cost
    shards_gb: float
    """Size of SQLite shards after the run."""


@dataclass
class Case:
    """A broker and a pipeline with empty state, which can run several times."""

    kafka: EmbeddedKafka
    home: Path
    pipeline: str
    pipelines: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """Settings besides those of `cost.environment`."""
    options: Sequence[str] = ()
    """Options of `sluice run`."""
    sent: int = 0

    @property
    def config(self) -> dict[str, str]:
        return {"bootstrap.servers": self.kafka.bootstrap}

    def send(self, records: Records) -> None:
        """Write records to the topic of the benchmark's pipeline."""

        def timed() -> Iterator[tuple[str, bytes, int]]:
            for key, value in records:
                yield key, value, START_MS + self.sent
                self.sent += 1

        produce(self.config, NAME, timed())

    def run(self, name: str, records: int) -> Measured:
        """Run the pipeline over the records sent since its last run. `records` is their number."""
        cost = run(
            self.pipeline,
            home=self.home,
            pipelines=self.pipelines,
            kafka=self.config,
            records=self.sent,
            variables=self.variables,
            options=self.options,
        )
        console.print(f"{name}: {cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU s, {cost.peak_gb:.2f} GB")
        size = 0
        for file in (self.home / "shards").rglob("*"):
            if file.is_file():
                size += file.stat().st_size
        return Measured(name, records, cost, size / 1e9)


@contextmanager
def case(
    pipeline: str = NAME,
    text: str = "",
    partitions: int = 4,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Case]:
    """Start a broker for a pipeline of the repository, or for one with the given text."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        home, pipelines = Path(folder), ROOT / "spark_jobs"
        if text:
            pipelines = home / "pipelines"
            pipelines.mkdir()
            (pipelines / f"{pipeline}.py").write_text(text)
        with EmbeddedKafka(home / "kafka", quick=False) as kafka:
            kafka.create_topics({pipeline: partitions})
            yield Case(kafka, home / "run", pipeline, pipelines, variables or {})


def of_orders(name: str, count: int, partitions: int = 4) -> Measured:
    """Run the orders example."""
    stores = 1_000
    with case("orders", partitions=partitions) as setup:
        produce_orders(setup.config, count=count, stores=stores)
        setup.sent = count + stores
        return setup.run(name, setup.sent)


def of_pipeline(name: str, text: str, records: Records) -> Measured:
    """Run a pipeline over records."""
    with case(text=text) as setup:
        setup.send(records)
        return setup.run(name, setup.sent)


def of_shape(shape: Shape) -> tuple[Shape, Cost]:
    """Run a pipeline in which each record adds a key and is written to a topic.

    Returns the shape, with the number of batches that the run really had, and its cost.
    """
    text = of_fields(["n: int"], [*TOTALS, 'values.to("scaling_copies")'], shape.workers)
    variables = {"SLUICE_MAX_RECORDS": str(-(-shape.records // shape.batches))}
    with case(text=text, partitions=shape.partitions, variables=variables) as setup:
        setup.send(of_keys(range(shape.records)))
        cost = setup.run(str(shape), shape.records).cost
        with Ledger.open(f"sqlite:///{setup.home / 'ledger.sqlite'}") as ledger:
            snapshot = ledger.snapshots.latest(NAME)
        assert snapshot is not None
        return replace(shape, batches=snapshot.batch + 1), cost


def of_fields(fields: Sequence[str], stores: Iterable[str], workers: int = 2) -> str:
    return PIPELINE.format(fields="\n    ".join(fields), stores="\n".join(stores), workers=workers)


def of_keys(keys: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    for key in keys:
        yield f"key-{key:09}", b'{"n":%d}' % (key % 1_000)


TABLES = ["DeltaTable", "Pipeline", "PostgresTable"]
TOTALS = ['values.group_by_key().aggregate(store="totals", count="count(*)", sum="sum(n)")']


def number_of_records() -> Iterator[Measured]:
    """Measure orders, as in `make bench`."""
    for count in (1_000_000, 2_000_000, 5_000_000, 10_000_000):
        yield of_orders(f"{count:,} orders", count)


def number_of_keys() -> Iterator[Measured]:
    """Measure a run that creates keys, and three of 1,000 records after it."""
    text = of_fields(["n: int"], TOTALS)
    for keys in (10_000, 100_000, 1_000_000, 10_000_000):
        with case(text=text) as setup:
            setup.send(of_keys(range(keys)))
            yield setup.run(f"{keys:,} new keys", keys)
            for number in range(3):
                setup.send(of_keys(random.Random(number).sample(range(keys), FEW)))
                yield setup.run(f"{FEW:,} of {keys:,} keys", FEW)


def kinds_of_shards() -> Iterator[Measured]:
    """Measure half a million new keys in SQLite, and in PostgreSQL without its own CPU time."""
    keys = 500_000
    text = of_fields(["n: int"], TOTALS)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        postgres_server(Path(folder)) as server,
    ):
        for name, variables in (
            ("SQLite", {}),
            ("PostgreSQL", {"SLUICE_SHARDS": new_database(server)}),
        ):
            with case(text=text, variables=variables) as setup:
                setup.send(of_keys(range(keys)))
                yield setup.run(f"{keys:,} new keys, {name}", keys)


def number_of_partitions() -> Iterator[Measured]:
    """Measure a million orders in more or fewer partitions."""
    for partitions in (1, 2, 4, 8):
        yield of_orders(f"{partitions} partitions", 1_000_000, partitions)


def executors() -> Iterator[Measured]:
    """Measure a million new keys on a standalone cluster, with the shards in PostgreSQL.

    The figures are the driver's alone.
    """
    keys = 1_000_000
    text = of_fields(["n: int"], TOTALS)
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        postgres_server(Path(folder)) as server,
    ):
        for number in range(2):
            for workers, cores in ((1, 1), (1, 2), (2, 1)):
                name = f"{counted(workers, 'executor')} with {counted(cores, 'core')}"
                home = Path(folder, f"spark-{number}-{workers}-{cores}")
                home.mkdir()
                with (
                    spark_cluster(home, workers, cores) as cluster,
                    case(text=text, variables={"SLUICE_SHARDS": new_database(server)}) as setup,
                ):
                    setup.options = ["--master", cluster.master]
                    setup.send(of_keys(range(keys)))
                    yield setup.run(name, keys)


def number_of_stores() -> Iterator[Measured]:
    """Measure aggregates with the same keys."""
    chance = random.Random(7)
    keys = [chance.randrange(1_000) for _ in range(1_000_000)]
    for stores in (1, 2, 4, 8):
        lines = ["grouped = values.group_by_key()"]
        for n in range(stores):
            lines.append(f'grouped.aggregate(store="s{n}", count="count(*)", sum="sum(n + {n})")')
        text = of_fields(["n: int"], lines)
        yield of_pipeline(f"{stores} stores", text, of_keys(keys))


def number_of_groupings() -> Iterator[Measured]:
    """Measure aggregates with different keys."""
    chance = random.Random(7)
    keys = [chance.randrange(1_000_000) for _ in range(1_000_000)]
    for groupings in (1, 2, 4, 8):
        lines: list[str] = []
        for n in range(groupings):
            lines.append(f'values.group_by("pmod(n, {1_000 - n})").count(store="s{n}")')
        yield of_pipeline(f"{groupings} groupings", of_fields(["n: int"], lines), of_keys(keys))


def shapes_of_records() -> Iterator[Measured]:
    """Measure values of 2 and of 40 fields, orders, and orders of which 1 % cannot be decoded."""
    count = 500_000
    chance = random.Random(7)
    stores = ['values.group_by("f1").aggregate(store="totals", count="count(*)", sum="sum(f0)")']
    for width in (2, 40):
        fields = [f"f{n}: {'str' if n % 2 else 'int'}" for n in range(width)]
        records = _wide_records(count, width, chance)
        yield of_pipeline(f"{width} fields", of_fields(fields, stores), records)
    source = (ROOT / "spark_jobs" / "orders.py").read_text()
    text = source[: source.index("class Address")] + (
        f'pipeline = Pipeline("{NAME}")\n'
        f'values = pipeline.stream("{NAME}", value=Order, event_time="orderedDateTime")\n'
        'window = tumbling("15 seconds", grace="15 seconds")\n'
        'totals = values.group_by("locationId").windowed_by(window)\n'
        'totals.aggregate(store="totals", count="count(*)", sum="sum(finalAmount)")\n'
    )
    for bad in (0.0, 0.01):
        samples = ((sample[0], sample[1]) for sample in orders(count, 1_000, bad_share=bad))
        yield of_pipeline(f"orders, {bad:.0%} invalid", text, samples)


def _wide_records(count: int, width: int, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    for number in range(count):
        value: dict[str, int | str] = {}
        for n in range(width):
            content = chance.randrange(1_000)
            value[f"f{n}"] = f"text-{content}" if n % 2 else content
        yield str(number), msgspec.json.encode(value)


def numbers_of_workers() -> Iterator[Measured]:
    """Measure `sluice repartition` of keys from two workers to four, and the next run."""
    for keys in (100_000, 1_000_000, 10_000_000):
        with case(text=of_fields(["n: int"], TOTALS)) as setup:
            setup.send(of_keys(range(keys)))
            before = setup.run(f"{keys:,} new keys", keys)
            (setup.pipelines / f"{NAME}.py").write_text(of_fields(["n: int"], TOTALS, workers=4))
            cost = of_command(
                SLUICE,
                "repartition",
                NAME,
                environment=environment(setup.home, setup.pipelines, setup.config),
            )
            name = f"{keys:,} keys moved"
            times = f"{cost.wall_s:.1f} s, {cost.cpu_s:.1f} CPU s"
            console.print(f"{name}: {times}, {cost.peak_gb:.2f} GB")
            yield Measured(name, keys, cost, before.shards_gb)
            setup.send(of_keys(random.Random(7).sample(range(keys), FEW)))
            yield setup.run(f"{FEW:,} of {keys:,} keys", FEW)


def outputs() -> Iterator[Measured]:
    """Measure new keys and their counts, written to topics and tables, and two smaller runs."""
    keys = 200_000
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder,
        postgres_server(Path(folder)) as server,
    ):
        variables = {connection_variable("warehouse"): server}
        for name, stream, counts in (
            ("no output", "", ""),
            ("topics", '"copies"', '"totals"'),
            (
                "PostgreSQL",
                'PostgresTable("copies", connection="warehouse")',
                'PostgresTable("totals", connection="warehouse", key="key")',
            ),
            (
                "Delta Lake",
                f'DeltaTable("{folder}/copies")',
                f'DeltaTable("{folder}/totals", key="key")',
            ),
        ):
            lines = ['counts = values.group_by_key().count(store="counts")']
            if stream:
                lines.append(f"values.to({stream})")
                lines.append(f'counts.select(n="value").to({counts})')
            text = of_fields(["n: int"], lines)
            text = text.replace("import Pipeline", f"import {', '.join(TABLES)}")
            with case(text=text, variables=variables) as setup:
                setup.send(of_keys(range(keys)))
                yield setup.run(f"{name}, {keys:,} records", keys)
                for number in (1, 2):
                    setup.send(of_keys(random.Random(number).sample(range(keys), FEW)))
                    yield setup.run(f"{name}, {FEW:,} records", FEW)


SERIES: dict[str, Callable[[], Iterator[Measured]]] = {
    "records": number_of_records,
    "keys": number_of_keys,
    "shards": kinds_of_shards,
    "partitions": number_of_partitions,
    "stores": number_of_stores,
    "groupings": number_of_groupings,
    "shapes": shapes_of_records,
    "workers": numbers_of_workers,
    "executors": executors,
    "outputs": outputs,
}


FITTED = (
    Shape(FITTED_RECORDS, 1, 4, 2),
    Shape(6 * FITTED_RECORDS, 1, 4, 2),
    Shape(FITTED_RECORDS, 10, 4, 2),
    Shape(FITTED_RECORDS, 10, 64, 2),
    Shape(FITTED_RECORDS, 10, 4, 32),
)
"""Each run differs from another in a single part, so the five runs suffice to compute the cost of
the five parts."""
PREDICTED = (Shape(4 * FITTED_RECORDS, 4, 16, 8), Shape(4 * FITTED_RECORDS, 2, 64, 32))


def compare_with_model() -> Iterator[Table]:
    """Fit the model to small runs.

    Yields a table of the model's parts, then a table that compares its predictions with other runs.
    """
    runs = [of_shape(shape) for shape in FITTED]
    measured: list[tuple[Shape, Mapping[str, float]]] = []
    for shape, cost in runs:
        measured.append((shape, cost.cpu_by_program))
    model = Model.fit(measured)
    parts = Table("CPU ms per", *PROGRAMS, title="model: the CPU time of each part of a run")
    for part, seconds in zip(PARTS, model.seconds.tolist(), strict=True):
        milliseconds = [f"{1_000 * of_program:,.4g}" for of_program in seconds]
        parts.add_row(part, *milliseconds)
    yield parts
    cores = len(os.sched_getaffinity(0))
    smallest, of_smallest = runs[0]
    start_s = of_smallest.wall_s - model.shortest_s(smallest, cores)
    columns = ("run", "CPU s predicted", "measured", "ratio", "s predicted", "measured", "ratio")
    compared = Table(
        *columns, title=f"model: predicted and measured runs with {counted(cores, 'core')}"
    )
    for wanted in PREDICTED:
        shape, cost = of_shape(wanted)
        cpu_s, wall_s = sum(model.predict(shape).values()), start_s + model.shortest_s(shape, cores)
        compared.add_row(str(shape), *_beside(cpu_s, cost.cpu_s), *_beside(wall_s, cost.wall_s))
    yield compared


def _beside(predicted: float, measured: float) -> tuple[str, str, str]:
    return f"{predicted:.1f}", f"{measured:.1f}", f"{measured / predicted:.2f}"


def main(
    series: Annotated[list[str], typer.Argument(help=f"Any of {', '.join([*SERIES, MODEL])}.")],
) -> None:
    """Measure the series, and print a table for each."""
    names = [*SERIES, MODEL]
    unknown = sorted({*series} - {*names})
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(names)}")
    console = Console(width=140)
    for name in series:
        if name == MODEL:
            for shown in compare_with_model():
                console.print(shown)
        else:
            console.print(table(name, [*SERIES[name]()]))


def table(name: str, results: Sequence[Measured]) -> Table:
    title = (SERIES[name].__doc__ or "").removeprefix("Measure ").rstrip(".")
    shown = Table(title=f"{name}: {title}")
    for column in (
        "",
        "s",
        "records/s",
        "CPU s",
        "CPU us per record",
        "peak GB",
        "shards GB",
        "time to first",
    ):
        shown.add_column(column, justify="right" if column else "left", no_wrap=True)
    for result in results:
        cost = result.cost
        shown.add_row(
            result.name,
            f"{cost.wall_s:.1f}",
            f"{result.records / cost.wall_s:,.0f}",
            f"{cost.cpu_s:.1f}",
            f"{cost.cpu_s / result.records * 1e6:.1f}",
            f"{cost.peak_gb:.2f}",
            f"{result.shards_gb:.2f}",
            f"{cost.wall_s / results[0].cost.wall_s:.2f}",
        )
    return shown


if __name__ == "__main__":
    interrupt_on_sigterm()
    jars.folder(jars.Bundle.BROKER, settings().jars)
    typer.run(main)
