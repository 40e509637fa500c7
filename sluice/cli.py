"""The command `sluice`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sluice.commands import health, queries, servers
from sluice.commands.console import out, said, show
from sluice.errors import SettingsError, TopologyError
from sluice.settings import settings
from sluice.topology.pipeline import Pipeline

# Everything else is imported by the command that needs it, so that --help is there at once.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # they would show the values of variables
    help="Stream processing with Airflow, Spark and Kafka.",
)
produce = typer.Typer(no_args_is_help=True, help="Bring samples to Kafka.")
kafka = typer.Typer(no_args_is_help=True, help="A real Kafka broker on this machine.")
app.add_typer(produce, name="produce")
app.add_typer(kafka, name="kafka")
app.add_typer(queries.app, name="query")
app.command()(health.status)
app.command()(servers.serve)
app.command()(servers.move)
app.command()(servers.workers)

Name = Annotated[str, typer.Argument(help="The pipeline's name.", metavar="PIPELINE")]
Folder = Annotated[Path | None, typer.Option(help="Where it keeps its data; default: .sluice/kafka.")]


@produce.command("orders")
def produce_orders(
    count: Annotated[int, typer.Option(min=1, help="Number of orders.")] = 10_000,
    stores: Annotated[int, typer.Option(min=1, help="Number of stores they go to; store_1234 is one of them.")] = 50,
    seed: Annotated[int, typer.Option(help="The same seed makes the same orders.")] = 7,
    bad: Annotated[float, typer.Option(min=0, max=1, help="Share of orders that cannot be read.")] = 0.01,
    late: Annotated[float, typer.Option(min=0, max=1, help="Share of orders that are two minutes old.")] = 0.0,
    start: Annotated[str, typer.Option(help="When the first is placed, UTC, or: now.")] = "2022-12-05T08:55:27",
    topic: Annotated[str, typer.Option(help="The topic of the orders.")] = "orders",
    bootstrap: Annotated[str, typer.Option(help="HOST:PORT of the broker; default: as SLUICE_KAFKA says.")] = "",
) -> None:
    """Produce sample stores and orders; makes the topics of the orders pipeline that are missing."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sluice.examples.orders import produce_orders

    with said(), Progress(TextColumn("orders"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        bar = progress.add_task("orders", total=count)
        done = produce_orders(
            settings().kafka | ({"bootstrap.servers": bootstrap} if bootstrap else {}),
            count=count,
            stores=stores,
            seed=seed,
            bad_share=bad,
            late_share=late,
            start_ms=_epoch_ms(start),
            topic=topic,
            progress=lambda sent: progress.update(bar, completed=sent),
        )
    made = f", created the topics {', '.join(done.created_topics)}" if done.created_topics else ""
    out.print(f"{done.orders:,} orders ({done.bad:,} bad) and {done.stores:,} stores in {done.seconds:.1f} s{made}")


def _epoch_ms(text: str) -> int:
    try:
        when = datetime.now(UTC) if text == "now" else datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"--start {text!r} is no time.", next_step="Write for example 2022-12-05T08:55:27."
        ) from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()) * 1000


@kafka.command("start")
def kafka_start(
    port: Annotated[int, typer.Option(help="The port it listens on, on this machine only.")] = 9092,
    folder: Folder = None,
) -> None:
    """Start a broker that runs until `sluice kafka stop`."""
    from sluice.testing.kafka import start

    with said():
        broker = start(folder or settings().home / "kafka", port)
        out.print(f"Kafka answers on {broker.bootstrap} (process {broker.pid})")


@kafka.command("stop")
def kafka_stop(folder: Folder = None) -> None:
    """Stop the broker."""
    from sluice.testing.kafka import stop

    with said():
        broker = stop(folder or settings().home / "kafka")
        out.print("No broker runs." if broker is None else f"Stopped the broker on {broker.bootstrap}")


@app.command()
def demo(
    leave: Annotated[bool, typer.Option("--exit", help="End after the answers; 1 if one is wrong.")] = False,
    port: Annotated[int | None, typer.Option(help="Airflow's port; default: 8080, or any that is free.")] = None,
) -> None:
    """Start Kafka and Airflow, produce orders, let the pipeline run, and ask it."""
    from sluice.examples.orders.demo import Options
    from sluice.examples.orders.demo import demo as show

    with said():
        status = show(Options(leave, port), out)
    raise typer.Exit(status)


@app.command()
def explain(pipeline: Name) -> None:
    """Say which jobs a pipeline becomes, and what each reads, holds and writes."""
    from sluice.plan import explain, plan

    with said():
        out.print(explain(plan(_load(pipeline))), markup=False, soft_wrap=True)


@app.command()
def check(
    pipeline: Annotated[
        str, typer.Argument(metavar="[PIPELINE]", help="The pipeline's name; all of them if left out.")
    ] = "",
) -> None:
    """Check pipelines as a run would before it reads anything: that they can be built, and go on from their state."""
    from sluice.engine.job.check import Findings
    from sluice.engine.job.check import check as check_with_spark
    from sluice.plan import plan
    from sluice.topology import Loaded, load_pipelines

    with said():
        loaded = Loaded([_load(pipeline)], []) if pipeline else load_pipelines(settings().pipelines)
        wrong = [one.error for one in loaded.broken]
        planned = []
        for one in loaded.pipelines:
            try:
                planned.append(plan(one))
            except TopologyError as error:
                wrong.append(error)
        found = check_with_spark(settings(), planned) if planned else Findings()
        for fine in (one for one in planned if one.pipeline.name not in found.errors):
            jobs = f"{len(fine.jobs)} job{'s' if len(fine.jobs) > 1 else ''}"
            out.print(f"{fine.pipeline.name}: {len(fine.pipeline.steps)} steps, {jobs}, no error")
            for warning in found.warnings.get(fine.pipeline.name, []):
                out.print(f"{fine.pipeline.name}: {warning}", markup=False, soft_wrap=True)
    wrong += found.errors.values()
    for mistake in wrong:
        show(mistake)
    raise typer.Exit(1 if wrong else 0)


@app.command()
def describe(
    pipeline: Name,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="As an SVG drawing.")] = False,
) -> None:
    """Print a pipeline's topology."""
    from sluice.topology import drawing

    draw: Callable[[Pipeline], str] = drawing.mermaid if mermaid else drawing.svg if svg else drawing.text
    with said():
        out.print(draw(_load(pipeline)), markup=False, soft_wrap=True)


@app.command()
def run(
    pipeline: Name,
    master: Annotated[str, typer.Option(help="The Spark master.")] = "local[2]",
) -> None:
    """Run a pipeline's jobs with spark-submit, without Airflow, until they have read what there is."""
    _submit(pipeline, master)


@app.command()
def rebuild(
    pipeline: Name,
    from_topics: Annotated[
        bool, typer.Option("--from-topics", help="Take the topics as they are now, whatever they have lost.")
    ] = False,
    master: Annotated[str, typer.Option(help="The Spark master.")] = "local[2]",
) -> None:
    """Build a pipeline's state anew from its topics, while the old one goes on being read; then take its place."""
    _submit(pipeline, master, "--rebuild", *(["--from-topics"] if from_topics else []))


def _submit(pipeline: str, master: str, *options: str) -> None:
    from sluice.brokers import require_brokers
    from sluice.state.ledger.run_ends import note_killed, noted, now
    from sluice.submission import submission

    with said():
        _load(pipeline)
        started_at = now()
        with submission(settings(), settings().kafka, master, [*options, pipeline]) as submitted:
            with noted(settings(), pipeline):
                require_brokers(settings().kafka)
            status = submitted.run()
        if status and not options:
            detail = f"The driver ended with status {status} and without an error message."
            note_killed(settings(), pipeline, "", "", started_at, detail)
    raise typer.Exit(status)


@app.command()
def audit(
    pipeline: Name,
    run: Annotated[str, typer.Argument(help="A run of Airflow, or a snapshot such as 1.42; default: all.")] = "",
    verify: Annotated[bool, typer.Option("--verify", help="Read every shard; mark what is damaged.")] = False,
) -> None:
    """Say what became of every record, and whether it balances; 1 if it does not, or a shard is damaged."""
    from sluice.auditing import report

    with said():
        fine = report(settings().ledger, pipeline, run, out, verify=verify)
    raise typer.Exit(0 if fine else 1)


def _load(name: str) -> Pipeline:
    from sluice.topology import load_pipeline

    return load_pipeline(settings().pipelines, name)


if __name__ == "__main__":
    app()
