"""Commands about one pipeline: explain, check, describe, run, rebuild, repartition and audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.activity_notes import note_activity
from sluice.commands.command_arguments import LOCAL, FromTopics, Master, PipelineName
from sluice.commands.console import errors_as_messages, out, show, wide
from sluice.commands.pipeline_submission import load, settings_of, submit
from sluice.errors import SettingsError, SluiceError, TopologyError
from sluice.settings import settings
from sluice.values.phrases import counted

if TYPE_CHECKING:
    from sluice.engine.run.check_without_spark import Comparison
    from sluice.plan import Plan
    from sluice.topology.pipeline import Pipeline


def explain(
    pipeline: PipelineName,
    master: Annotated[
        str, typer.Option(help="Also print the tasks of a run on this Spark master.")
    ] = "",
) -> None:
    """Print a pipeline's plan: what its query reads, stores and writes.

    With --master, also print the topics' partitions, the tasks that Spark runs for them, the cores,
    and the shards.
    """
    from sluice.plan import explain, plan

    if master:
        # The driver prints the plan with the tasks. `submit` then ends the command.
        submit(pipeline, master, "--explain")
    with errors_as_messages():
        out.print(explain(plan(load(pipeline))), markup=False, soft_wrap=True)


def check(
    pipeline: Annotated[
        str, typer.Argument(metavar="[PIPELINE]", help="The pipeline's name; default: all.")
    ] = "",
    no_spark: Annotated[
        bool,
        typer.Option(
            "--no-spark",
            help=(
                "Only load the files, and print what has changed since the newest snapshots. "
                "Exit with 3 if runs would stop, with 4 if results change."
            ),
        ),
    ] = False,
    master: Annotated[
        str,
        typer.Option(
            help="Only check the executors of this Spark master: Python, packages, clocks, and "
            "whether they reach Kafka and the shards."
        ),
    ] = "",
) -> None:
    """Check pipelines, their state, routes and settings, as a run does before it reads records.

    Exit with 1 if something is wrong.
    """
    if master:
        # The driver prints a table of the checks. `submit` then ends the command.
        submit(_checked_pipeline(pipeline), master, "--check-executors")
    from sluice.plan import plan
    from sluice.topology import Loaded, load_pipelines

    errors: list[SluiceError] = []
    plans: list[Plan] = []
    status = 0
    with errors_as_messages():
        if pipeline:
            loaded = Loaded([load(pipeline)], [])
        else:
            loaded = load_pipelines(settings().pipelines)
        errors += [file.error for file in loaded.broken]
        for definition in loaded.pipelines:
            try:
                plans.append(plan(definition))
            except TopologyError as error:
                # The error of one pipeline does not keep the others from being checked.
                errors.append(error)
        if no_spark:
            status = _compare(plans)
        else:
            errors += _check_with_spark(plans)
        errors += _check_readers(plans, is_complete=not pipeline)
        _warn_of_shared_topics(plans)
        errors += _check_run_options(loaded.pipelines)
        if not pipeline:
            names = {definition.name for definition in loaded.pipelines}
            _warn_of_unknown_names(names | {file.name for file in loaded.broken})
        _warn_of_schemas(plans)
        if not pipeline and not no_spark:
            errors += _check_routes()
    errors += _check_settings()
    for mistake in errors:
        show(mistake)
    raise typer.Exit(1 if errors else status)


def _checked_pipeline(name: str) -> str:
    """Return the pipeline whose driver checks the executors: by default, the first in the folder.

    Executors are checked in the same way for all pipelines, except for their tables' databases.
    """
    from sluice.topology import load_pipelines

    if name:
        return name
    with errors_as_messages():
        loaded = load_pipelines(settings().pipelines).pipelines
        if not loaded:
            raise SettingsError(
                f"There is no pipeline in {settings().pipelines}, and the check of executors "
                "needs one.",
                next_step="Set SLUICE_PIPELINES to the folder of your pipelines.",
            )
    return loaded[0].name


def _check_run_options(pipelines: Iterable[Pipeline]) -> list[SluiceError]:
    """Return the errors in the files `sluice.toml`, each once."""
    from sluice.topology.loading.run_options import run_options

    folder = settings().pipelines
    errors: dict[str, SluiceError] = {}
    for pipeline in pipelines:
        try:
            run_options(folder, pipeline.file, pipeline.name)
        except SettingsError as error:
            # The error of a team's defaults is the same for all of its pipelines.
            errors[str(error)] = error
    return [*errors.values()]


def _warn_of_unknown_names(pipelines: Iterable[str]) -> None:
    """Warn of the names in the files `sluice.toml` that no pipeline has."""
    from sluice.topology.loading.run_options import unknown_names

    with suppress(SettingsError):  # `_check_run_options` has reported the error
        for warning in unknown_names(settings().pipelines, pipelines):
            out.print(f"warning: {warning}", markup=False, soft_wrap=True)


def _check_with_spark(plans: Sequence[Plan]) -> Iterable[SluiceError]:
    """Let Spark check the pipelines. Print the warnings, and return the errors."""
    from sluice.provision.supported_versions import check_python, check_spark

    if not plans:
        return []
    check_python()
    check_spark()
    # PySpark may be missing, so this module is imported after the check.
    from sluice.engine.run.pipeline_check import check as check_with_spark

    findings = check_with_spark(settings(), plans)
    for planned in plans:
        name = planned.pipeline.name
        if name not in findings.errors:
            out.print(f"{name}: {len(planned.pipeline.steps)} steps, no error")
            for warning in findings.warnings.get(name, "").splitlines():
                out.print(f"{name}: {warning}", markup=False, soft_wrap=True)
    return findings.errors.values()


_STATUS = {"stop": 3, "warning": 4, "note": 0}
"""Weight of a change → the status with which `check --no-spark` exits."""


def _compare(plans: Sequence[Plan]) -> int:
    """Print what has changed since the newest snapshots. Return the status to exit with."""
    from sluice.support.pandas_on_demand import import_pandas_on_demand

    # Without pandas, these imports take a fifth less time.
    import_pandas_on_demand()
    from sluice.engine.run.check_without_spark import compare
    from sluice.engine.run.published_changes import Weight
    from sluice.operations.store_readers import readers_of
    from sluice.state.ledger.ledger import Ledger

    worst = Weight.NOTE
    with Ledger.open(settings().ledger) as ledger:
        for planned in plans:
            compared = compare(planned.job, settings(), ledger)
            worst = max(worst, compared.weight)
            _print_comparison(planned, compared)
            readers = readers_of(ledger, planned.pipeline.name)
            if readers and compared.changes:
                text = f"  Other pipelines read its stores: {', '.join(readers)}."
                out.print(text, markup=False, soft_wrap=True)
    return _STATUS[worst.name.lower()]


def _print_comparison(planned: Plan, compared: Comparison) -> None:
    name, steps = planned.pipeline.name, len(planned.pipeline.steps)
    summary = "nothing is published yet"
    if compared.snapshot:
        count = counted(len(compared.changes), "change") if compared.changes else "no change"
        summary = f"{count} since snapshot {compared.snapshot}"
    out.print(f"{name}: {steps} steps, {summary}", markup=False)
    for change in compared.changes:
        out.print(f"  {change.weight.name.lower()}: {change}", markup=False, soft_wrap=True)
    if compared.next_step:
        out.print(f"  next step: {compared.next_step}", markup=False, soft_wrap=True)
    if compared.unknown:
        why = f"only Spark knows them: {compared.unknown}"
        text = f"  Types were not compared, because {why}. Run sluice check {name}."
        out.print(text, markup=False, soft_wrap=True)


def _check_readers(plans: Sequence[Plan], *, is_complete: bool) -> list[SluiceError]:
    """Return an error for each pipeline whose change breaks other pipelines that read from it.

    `is_complete`: whether `plans` has the plans of all files.
    """
    from sluice.commands.readers_in_files import readers_in_files, require_readers
    from sluice.engine.run.compatibility import CompatibilityError
    from sluice.state.ledger.ledger import Ledger

    errors: list[SluiceError] = []
    if not plans:
        return errors
    with Ledger.open(settings().ledger) as ledger:
        for planned in plans:
            others = [other.job for other in plans]
            if not is_complete:
                others = readers_in_files(settings().pipelines, planned.pipeline)
            try:
                warning = require_readers(settings(), ledger, planned.job, others)
            except CompatibilityError as error:
                errors.append(error)
                continue
            if warning:
                text = f"warning: {planned.pipeline.name}: {warning}"
                out.print(text, markup=False, soft_wrap=True)
    return errors


def _warn_of_shared_topics(plans: Iterable[Plan]) -> None:
    from sluice.values.shared_topics import shared_topics

    outputs = {planned.pipeline.name: planned.job.outputs for planned in plans}
    for shared in shared_topics(outputs):
        out.print(f"warning: {shared}", markup=False, soft_wrap=True)


def _warn_of_schemas(plans: Iterable[Plan]) -> None:
    """Print which topics the schema registry and the pipelines disagree about."""
    from sluice.commands.schema_commands import note_comparisons
    from sluice.errors import RegistryAway
    from sluice.operations.registered_topics import compare
    from sluice.registry.opening import registry_of

    if not settings().registry:
        return
    try:
        for planned in plans:
            comparisons = [*compare(planned.job, registry_of(settings().registry))]
            note_comparisons(planned.pipeline.name, comparisons)
            for each in comparisons:
                if each.problem:
                    text = f"warning: {planned.pipeline.name}: {each.problem}"
                    out.print(text, markup=False, soft_wrap=True)
    except RegistryAway as away:
        out.print(f"warning: {away}", markup=False, soft_wrap=True)


def _check_settings() -> Iterable[SluiceError]:
    """Check Kafka's settings and the addresses of databases.

    Prints a warning if a database cannot be written, or if Kafka clients get no token.
    """
    from sluice.errors import BrokersUnreachable, StateError
    from sluice.kafka.brokers import require_token, silent_admin
    from sluice.state.database import database_url
    from sluice.state.postgres_checks import lossy_settings, require_usable, require_usable_shards

    def check_kafka() -> None:
        # The client refuses unknown and invalid settings, and files that it cannot read.
        silent_admin(settings().kafka)
        require_token(settings().kafka)

    checks: Sequence[Callable[[], object]] = (
        check_kafka,
        lambda: require_usable(database_url(settings().ledger), "ledger", "SLUICE_LEDGER"),
        lambda: require_usable_shards([settings().shards]),
    )
    for check_setting in checks:
        try:
            check_setting()
        except SettingsError as error:
            yield error
        except (StateError, BrokersUnreachable) as error:
            # These errors are only warnings. This command only reads, so it may use a standby or a
            # read-only database. Kafka and the endpoint of tokens may be out of reach on this host.
            out.print(f"warning: {error}", markup=False, soft_wrap=True)
    for what, address in (("ledger", settings().ledger), ("shards", settings().shards)):
        for warning in lossy_settings(database_url(address), what):
            out.print(f"warning: {warning}", markup=False, soft_wrap=True)


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
    html: Annotated[
        bool,
        typer.Option("--html", help="Print an HTML file with the drawing of the page in Airflow."),
    ] = False,
) -> None:
    """Print a pipeline's topology as text or as a drawing.

    The text ends with the options with which Airflow runs the pipeline, if a file `sluice.toml`
    gives any.
    """
    from sluice.commands.topology_file import topology_file
    from sluice.topology import drawing
    from sluice.topology.loading.run_options import DEFAULTS, run_options

    draw: Callable[[Pipeline], str] = drawing.svg if svg else drawing.text
    if html:
        draw = topology_file
    with errors_as_messages():
        definition = load(pipeline)
        out.print(draw(definition), markup=False, soft_wrap=True)
        if not svg and not html:
            options = run_options(settings().pipelines, definition.file, pipeline)
        if not svg and not html and options != DEFAULTS:
            out.print(f"\nruns\n{indent(options.as_text(), '  ')}", markup=False, soft_wrap=True)


def run(
    pipeline: PipelineName,
    master: Master = LOCAL,
    linger: Annotated[
        str,
        typer.Option(
            help=(
                'After the last record, wait this long for more, e.g. "5 minutes"; default: set by '
                "the pipeline."
            )
        ),
    ] = "",
) -> None:
    """Run a pipeline with spark-submit, without Airflow, until it has read all records."""
    with errors_as_messages():
        linger_ms = settings().linger_ms
        if linger:
            linger_ms = _linger_ms(linger)
    submit(pipeline, master, linger_ms=linger_ms)


def _linger_ms(text: str) -> int:
    """Return the milliseconds of the option --linger.

    Raises SettingsError if the text is not a duration.
    """
    from sluice.topology.durations import milliseconds

    try:
        return milliseconds(text)
    except TopologyError as error:
        raise SettingsError(
            f"--linger {text!r} is not a duration.", next_step=error.next_step
        ) from None


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
    options = ["--rebuild"]
    if changed_only:
        options.append("--changed-only")
    if from_topics:
        options.append("--from-topics")
    submit(pipeline, master, *options)


def repartition(pipeline: PipelineName) -> None:
    """Spread a pipeline's state over the number of workers that its file now has.

    No run may be in progress. Stores keep their values, and the next run continues where the last
    run stopped. The topics are not read.
    """
    from sluice.operations.repartition import repartition as spread
    from sluice.plan import plan

    with errors_as_messages(), out.status("moving rows") as status:
        outcome = spread(plan(load(pipeline)).job, settings_of(pipeline), status.update)
        status.stop()
        workers = counted(outcome.workers, "worker")
        generation = f"generation {outcome.generation}"
        if outcome.rows is None:
            message = f"{pipeline} already has {workers}, in {generation}; nothing was moved"
        else:
            rows = counted(outcome.rows, "row")
            message = f"{pipeline} is now {generation}, with {rows} on {workers}"
            note_activity(pipeline, "repartition", f"{generation} on {workers}")
        out.print(message, markup=False)


def audit(
    pipeline: PipelineName,
    run: Annotated[
        str,
        typer.Argument(
            help="Only this run of Airflow, or this snapshot, such as 1.42; default: all."
        ),
    ] = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every shard, and quarantine damaged shards.")
    ] = False,
) -> None:
    """Account for every record that was read.

    Exit with 1 if a record is missing or a shard is damaged.
    """
    from sluice.observe.audit_report import report

    with errors_as_messages():
        is_complete = report(settings().ledger, pipeline, run, wide.console, verify=verify)
    raise typer.Exit(0 if is_complete else 1)
