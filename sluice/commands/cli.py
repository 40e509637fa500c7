"""The command `sluice`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sluice.commands import backups, health, kafka_topics, project, query, samples, serve
from sluice.commands.console import Commands, Form, err, errors_as_messages, out, print_rows, show, wide
from sluice.errors import NotFound, SettingsError, SluiceError, TopologyError
from sluice.settings import settings
from sluice.support.startup import importing
from sluice.topology.pipeline import Pipeline
from sluice.values.counts import counted

# Commands import everything else inside their functions, so that --help is fast.

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # pretty tracebacks show the values of variables
    help="Stream processing with Airflow, Spark and Kafka.",
)
generations = typer.Typer(
    no_args_is_help=True,
    help="Rebuild a pipeline's state in a new generation, compare it with the current one, and promote or drop it.",
)
kafka = typer.Typer(no_args_is_help=True, help="A Kafka broker on this machine.")
app.add_typer(samples.app, name="produce")
app.add_typer(kafka, name="kafka")
app.add_typer(kafka_topics.app, name="topics")
app.add_typer(query.app, name="query")
app.add_typer(generations, name="generations")
app.add_typer(kafka_topics.dead_letters, name="dead-letters")
app.add_typer(serve.standby, name="standby")
app.command()(project.init)
app.command()(samples.demo)
app.command()(health.status)
app.command()(serve.serve)
app.command()(serve.move)
app.command()(serve.import_state)
app.command()(serve.workers)
app.command()(backups.backup)
app.command()(backups.restore)

Name = Annotated[str, typer.Argument(help="The pipeline's name.", metavar="PIPELINE")]
Master = Annotated[str, typer.Option(help="The Spark master.")]
LOCAL = "local[2]"
FromTopics = Annotated[bool, typer.Option("--from-topics", help="Accept that the topics no longer hold all records.")]
Folder = Annotated[Path | None, typer.Option(help="The broker's data folder; default: kafka in SLUICE_HOME.")]


@kafka.command("start")
def kafka_start(
    port: Annotated[int, typer.Option(help="The port, reachable from this machine only.")] = 9092,
    folder: Folder = None,
) -> None:
    """Start a broker that runs until `sluice kafka stop`."""
    from sluice.local.broker import start

    with errors_as_messages():
        broker = start(folder or settings().home / "kafka", port)
        out.print(f"Kafka listens on {broker.bootstrap} (process {broker.pid})")


@kafka.command("stop")
def kafka_stop(folder: Folder = None) -> None:
    """Stop the broker that `kafka start` has started."""
    from sluice.local.broker import stop

    with errors_as_messages():
        broker = stop(folder or settings().home / "kafka")
        out.print("No broker is running." if broker is None else f"Stopped the broker on {broker.bootstrap}")


@app.command()
def explain(
    pipeline: Name,
    master: Annotated[str, typer.Option(help="Also print the tasks of a run on this Spark master.")] = "",
) -> None:
    """Print a pipeline's plan: what its query reads, stores and writes.

    With --master: also the topics' partitions, the tasks that Spark runs for them, the cores, and the shards.
    """
    from sluice.plan import explain, plan

    if master:
        _submit(pipeline, master, "--explain")
    with errors_as_messages():
        out.print(explain(plan(_load(pipeline))), markup=False, soft_wrap=True)


@app.command()
def check(
    pipeline: Annotated[str, typer.Argument(metavar="[PIPELINE]", help="The pipeline's name; default: all.")] = "",
) -> None:
    """Check pipelines, their stored state, routes and Kafka's settings, as a run does before it reads records."""
    from sluice.engine.read.java_settings import java_settings
    from sluice.engine.run.check import Findings
    from sluice.engine.run.check import check as check_with_spark
    from sluice.plan import plan
    from sluice.topology import Loaded, load_pipelines

    errors: list[SluiceError] = []
    with errors_as_messages():
        loaded = Loaded([_load(pipeline)], []) if pipeline else load_pipelines(settings().pipelines)
        errors += [file.error for file in loaded.broken]
        plans = []
        for definition in loaded.pipelines:
            try:
                plans.append(plan(definition))
            except TopologyError as error:
                errors.append(error)
        findings = check_with_spark(settings(), plans) if plans else Findings()
        for correct in (planned for planned in plans if planned.pipeline.name not in findings.errors):
            out.print(f"{correct.pipeline.name}: {len(correct.pipeline.steps)} steps, no error")
            if (warning := findings.warnings.get(correct.pipeline.name)) is not None:
                out.print(f"{correct.pipeline.name}: {warning}", markup=False, soft_wrap=True)
        errors += findings.errors.values()
        if not pipeline:
            errors += _check_routes()
    try:
        java_settings(settings().kafka)
    except SettingsError as error:
        errors.append(error)
    for mistake in errors:
        show(mistake)
    raise typer.Exit(1 if errors else 0)


def _check_routes() -> Iterable[SluiceError]:
    if not any(settings().pipelines.glob("*_routes.py")):
        return []
    from sluice.api.routes.custom_route_files import load_routes

    files = load_routes(settings().pipelines)
    for file, routes in files.routes.items():
        out.print(f"{file.name}: {len(routes.routes)} routes, no error")
    return files.broken.values()


@app.command()
def describe(
    pipeline: Name,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="As an SVG drawing.")] = False,
) -> None:
    """Print a pipeline's topology as text, as a flowchart or as a drawing."""
    from sluice.topology import drawing

    draw: Callable[[Pipeline], str] = drawing.mermaid if mermaid else drawing.svg if svg else drawing.text
    with errors_as_messages():
        out.print(draw(_load(pipeline)), markup=False, soft_wrap=True)


@app.command()
def run(
    pipeline: Name,
    master: Master = LOCAL,
    linger: Annotated[
        str, typer.Option(help='Then wait this long for new records, e.g. "5 minutes"; default: set by the pipeline.')
    ] = "",
) -> None:
    """Run a pipeline with spark-submit, without Airflow, until it has read everything."""
    from sluice.topology.window_definitions import milliseconds

    with errors_as_messages():
        try:
            linger_ms = milliseconds(linger) if linger else settings().linger_ms
        except TopologyError as error:
            raise SettingsError(f"--linger {linger!r} is not a duration.", next_step=error.next_step) from None
    _submit(pipeline, master, linger_ms=linger_ms)


@app.command()
def rebuild(
    pipeline: Name,
    changed_only: Annotated[
        bool,
        typer.Option("--changed-only", help="Compute only new and changed stores, and keep the state of the others."),
    ] = False,
    from_topics: FromTopics = False,
    master: Master = LOCAL,
) -> None:
    """Rebuild a pipeline's state from its topics; queries read the old state until the new one is complete."""
    options = [name for name, given in (("--changed-only", changed_only), ("--from-topics", from_topics)) if given]
    _submit(pipeline, master, "--rebuild", *options)


@generations.command("list")
def list_generations(pipeline: Name) -> None:
    """List the generations of a pipeline's state; queries read the current one."""
    from sluice.observe import monitoring
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        rows = [
            {
                "generation": made.generation,
                "state": "current" if made.current else "built beside it",
                "snapshot": made.snapshot.id if made.snapshot else None,
                "published": f"{made.snapshot.published_at:%Y-%m-%d %H:%M:%S} UTC" if made.snapshot else None,
                "topology": "" if made.current else "the same" if made.same_topology else "changed",
            }
            for made in monitoring.generations(ledger, pipeline)
        ]
        if not rows:
            raise NotFound(f"The ledger has no pipeline {pipeline!r}.", next_step="Run it first; see SLUICE_LEDGER.")
        print_rows(rows, Form.TABLE)


@generations.command()
def replay(
    pipeline: Name,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POINT",
            help="Where to begin to read the streams: beginning, a time, or TOPIC/PARTITION/OFFSET,...; "
            "default: where the current generation began.",
        ),
    ] = "",
    until: Annotated[
        str,
        typer.Option(
            metavar="POINT", help="Where to end: a time or TOPIC/PARTITION/OFFSET,...; default: the newest snapshot."
        ),
    ] = "",
    from_topics: FromTopics = False,
    master: Master = LOCAL,
) -> None:
    """Build the state again from the topics in a new generation, without replacing the current one.

    A time is that of the records in Kafka, and in UTC if it has no zone. Tables are always read from their beginning.
    To compare a store in both generations: sluice query diff STORE --before 1.newest --after 2.newest.
    """
    from sluice.values.points import Span

    with errors_as_messages():
        Span.parse(begin, until)
    points = [f"--{name}={text}" for name, text in (("from", begin), ("until", until)) if text]
    _submit(pipeline, master, "--replay", *points, *(["--from-topics"] if from_topics else []))


@generations.command()
def promote(pipeline: Name, master: Master = LOCAL) -> None:
    """Bring the generation that a replay has built up to date, and make it the current one."""
    _submit(pipeline, master, "--promote")


@generations.command()
def drop(pipeline: Name, master: Master = LOCAL) -> None:
    """Remove the generation that a replay has built."""
    _submit(pipeline, master, "--drop")


@app.command()
def repartition(pipeline: Name) -> None:
    """Spread a pipeline's state over more or fewer workers: as many as its file now has. No run may be in progress.

    Stores keep their values, and the next run continues where the last one stopped. The topics are not read.
    """
    from sluice.operations.repartition import repartition as spread
    from sluice.plan import plan

    with errors_as_messages(), out.status("moving rows") as status:
        made = spread(plan(_load(pipeline)).job, settings(), status.update)
        status.stop()
        workers = counted(made.workers, "worker")
        if made.rows is None:
            message = f"{pipeline} already has {workers}, in generation {made.generation}; nothing was moved"
        else:
            message = f"{pipeline} is now generation {made.generation}, with {counted(made.rows, 'row')} on {workers}"
        out.print(message, markup=False)


def _submit(pipeline: str, master: str, *options: str, linger_ms: int | None = None) -> None:
    with errors_as_messages(), importing():
        from sluice.kafka.brokers import require_brokers
        from sluice.observe.backlog import unread_records
        from sluice.spark_submit import LARGE_BACKLOG, READING_AGAIN, Interrupted, submission
        from sluice.state.ledger.run_ends import note_failure, note_killed, now

        loaded = _load(pipeline)
    with errors_as_messages():
        started_at = now()
        try:
            with submission(
                replace(settings(), linger_ms=linger_ms), settings().kafka, master, [*options, pipeline],
                delta=loaded.needs_delta,
            ) as submitted:  # fmt: skip
                with note_failure(settings(), pipeline):
                    require_brokers(settings().kafka)
                unread = unread_records(
                    settings().kafka, settings().ledger, pipeline, loaded.topics, enough=LARGE_BACKLOG,
                    from_beginning=not READING_AGAIN.isdisjoint(options),
                )  # fmt: skip
                status = submitted.for_backlog(unread).run()
                detail = f"The driver ended with status {status} and without an error message."
        except Interrupted as interrupted:
            status, detail = 128 + interrupted.number, f"The command was {interrupted}."
            err.print(f"{detail} Published batches are kept; repeat the command to continue.", soft_wrap=True)
        if status and not options:
            note_killed(settings(), pipeline, "", started_at, detail)
    raise typer.Exit(status)


@app.command()
def audit(
    pipeline: Name,
    run: Annotated[str, typer.Argument(help="A run of Airflow, or a snapshot such as 1.42; default: all.")] = "",
    verify: Annotated[bool, typer.Option("--verify", help="Read every shard, and quarantine damaged shards.")] = False,
) -> None:
    """Account for every record that was read; status 1 if one is missing or a shard is damaged."""
    from sluice.observe.audit_report import report

    with errors_as_messages():
        is_complete = report(settings().ledger, pipeline, run, wide, verify=verify)
    raise typer.Exit(0 if is_complete else 1)


def _load(name: str) -> Pipeline:
    from sluice.topology import load_pipeline

    return load_pipeline(settings().pipelines, name)
