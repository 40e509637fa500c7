"""Commands about one pipeline: explain, check, describe, run, rebuild, repartition and audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.command_arguments import LOCAL, FromTopics, Master, PipelineName
from sluice.commands.console import errors_as_messages, out, show, wide
from sluice.commands.pipeline_submission import load, submit
from sluice.errors import SettingsError, SluiceError, TopologyError
from sluice.settings import settings
from sluice.values.phrases import counted

if TYPE_CHECKING:
    from sluice.topology.pipeline import Pipeline


def explain(
    pipeline: PipelineName,
    master: Annotated[str, typer.Option(help="Also print the tasks of a run on this Spark master.")] = "",
) -> None:
    """Print a pipeline's plan: what its query reads, stores and writes.

    With --master: also the topics' partitions, the tasks that Spark runs for them, the cores, and
    the shards.
    """
    from sluice.plan import explain, plan

    if master:
        # The driver prints the plan with the tasks. `submit` then ends the command.
        submit(pipeline, master, "--explain")
    with errors_as_messages():
        out.print(explain(plan(load(pipeline))), markup=False, soft_wrap=True)


def check(
    pipeline: Annotated[str, typer.Argument(metavar="[PIPELINE]", help="The pipeline's name; default: all.")] = "",
) -> None:
    """Check pipelines, their stored state, routes and Kafka's settings, as a run does before it reads records."""
    from sluice.engine.run.pipeline_check import Findings
    from sluice.engine.run.pipeline_check import check as check_with_spark
    from sluice.kafka.brokers import silent_admin
    from sluice.plan import plan
    from sluice.topology import Loaded, load_pipelines

    errors: list[SluiceError] = []
    with errors_as_messages():
        loaded = Loaded([load(pipeline)], []) if pipeline else load_pipelines(settings().pipelines)
        errors += [file.error for file in loaded.broken]
        plans = []
        for definition in loaded.pipelines:
            try:
                plans.append(plan(definition))
            except TopologyError as error:
                # The error of one pipeline does not keep the others from being checked.
                errors.append(error)
        findings = check_with_spark(settings(), plans) if plans else Findings()
        for planned in plans:
            name = planned.pipeline.name
            if name not in findings.errors:
                out.print(f"{name}: {len(planned.pipeline.steps)} steps, no error")
                warning = findings.warnings.get(name)
                if warning is not None:
                    out.print(f"{name}: {warning}", markup=False, soft_wrap=True)
        errors += findings.errors.values()
        if not pipeline:
            errors += _check_routes()
    try:
        # The client refuses unknown and invalid settings, and files that it cannot read.
        silent_admin(settings().kafka)
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


def describe(
    pipeline: PipelineName,
    svg: Annotated[bool, typer.Option("--svg", help="Print an SVG drawing.")] = False,
) -> None:
    """Print a pipeline's topology as text or as a drawing."""
    from sluice.topology import drawing

    draw: Callable[[Pipeline], str] = drawing.svg if svg else drawing.text
    with errors_as_messages():
        out.print(draw(load(pipeline)), markup=False, soft_wrap=True)


def run(
    pipeline: PipelineName,
    master: Master = LOCAL,
    linger: Annotated[
        str,
        typer.Option(
            help='After the last record, wait this long for more, e.g. "5 minutes"; default: set by the pipeline.'
        ),
    ] = "",
) -> None:
    """Run a pipeline with spark-submit, without Airflow, until it has read all records."""
    with errors_as_messages():
        linger_ms = _linger_ms(linger) if linger else settings().linger_ms
    submit(pipeline, master, linger_ms=linger_ms)


def _linger_ms(text: str) -> int:
    """The milliseconds of the option --linger. Raises SettingsError if the text is not a duration."""
    from sluice.topology.window_definitions import milliseconds

    try:
        return milliseconds(text)
    except TopologyError as error:
        raise SettingsError(f"--linger {text!r} is not a duration.", next_step=error.next_step) from None


def rebuild(
    pipeline: PipelineName,
    changed_only: Annotated[
        bool,
        typer.Option(
            "--changed-only",
            help="Compute only new and changed stores, and keep the state of the others.",
        ),
    ] = False,
    from_topics: FromTopics = False,
    master: Master = LOCAL,
) -> None:
    """Rebuild a pipeline's state from its topics; meanwhile, queries read the old state."""
    options = [name for name, given in (("--changed-only", changed_only), ("--from-topics", from_topics)) if given]
    submit(pipeline, master, "--rebuild", *options)


def repartition(pipeline: PipelineName) -> None:
    """Spread a pipeline's state over the number of workers that its file now has. No run may be in progress.

    Stores keep their values, and the next run continues where the last run stopped. The topics are
    not read.
    """
    from sluice.operations.repartition import repartition as spread
    from sluice.plan import plan

    with errors_as_messages(), out.status("moving rows") as status:
        made = spread(plan(load(pipeline)).job, settings(), status.update)
        status.stop()
        workers = counted(made.workers, "worker")
        if made.rows is None:
            message = f"{pipeline} already has {workers}, in generation {made.generation}; nothing was moved"
        else:
            message = f"{pipeline} is now generation {made.generation}, with {counted(made.rows, 'row')} on {workers}"
        out.print(message, markup=False)


def audit(
    pipeline: PipelineName,
    run: Annotated[
        str, typer.Argument(help="Only this run of Airflow, or this snapshot, such as 1.42; default: all.")
    ] = "",
    verify: Annotated[bool, typer.Option("--verify", help="Read every shard, and quarantine damaged shards.")] = False,
) -> None:
    """Account for every record that was read; exit with 1 if one is missing or a shard is damaged."""
    from sluice.observe.audit_report import report

    with errors_as_messages():
        is_complete = report(settings().ledger, pipeline, run, wide, verify=verify)
    raise typer.Exit(0 if is_complete else 1)
