"""`sluice schema`: compares pipelines with a schema registry, and moves schemas between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import errors_as_messages, out
from sluice.commands.pipeline_submission import load
from sluice.settings import settings

if TYPE_CHECKING:
    from sluice.operations.registered_topics import Comparison

app = typer.Typer(no_args_is_help=True, help="Compare pipelines with a schema registry.")


@app.command()
def pull(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject's name.")],
    version: Annotated[int, typer.Option(min=0, help="The version; 0: the latest.")] = 0,
    structs: Annotated[
        bool, typer.Option("--structs", help="Print Structs for the values, too.")
    ] = False,
) -> None:
    """Write a subject's schema to the folder `schemas` of the pipelines.

    Avro("SUBJECT"), Protobuf("SUBJECT") and JsonSchema("SUBJECT") use the schema as the contract.
    Only this command gets the schema from the registry: Airflow and tests read it from the folder.
    """
    from sluice.errors import NotFound, TopologyError
    from sluice.registry.opening import registry_of
    from sluice.registry.registry import UnknownSchemaError
    from sluice.topology.pulled_schemas import write_file
    from sluice.values.avro_schemas import SchemaError
    from sluice.values.schema_code import python_code
    from sluice.values.schema_structs import SchemaText

    with errors_as_messages():
        try:
            schema = registry_of(settings().registry).version(subject, version or "latest")
        except UnknownSchemaError:
            raise NotFound(
                f"The registry has no such version of {subject}.",
                next_step="Check the subject's name, and SLUICE_REGISTRY.",
            ) from None
        path = write_file(settings().pipelines, schema)
        if not structs:
            out.print(f"wrote {path}: {schema}", markup=False, soft_wrap=True)
            return
        try:
            origin = SchemaText(schema.kind, schema.text, schema.references)
            code = python_code(origin, subject, schema.version)
        except SchemaError as error:
            raise TopologyError(
                f"Sluice cannot make Structs for {schema}: {error}.",
                next_step="Declare a class with the fields that the pipeline reads.",
            ) from None
        out.print(code, markup=False, soft_wrap=True, end="")


@app.command()
def check(
    pipeline: Annotated[
        str, typer.Argument(metavar="[PIPELINE]", help="The pipeline's name; default: all.")
    ] = "",
) -> None:
    """Say for each topic with registered schemas whether the pipeline and the registry agree.

    A topic that is read is compared with the latest version of its subject. Exit with 1 if a
    version is missing or does not fit. The page shows what does not fit until a later check passes.
    """
    from sluice.operations.registered_topics import compare
    from sluice.plan import plan
    from sluice.registry.opening import registry_of
    from sluice.topology import Loaded, load_pipelines

    status = 0
    with errors_as_messages():
        if pipeline:
            loaded = Loaded([load(pipeline)], [])
        else:
            loaded = load_pipelines(settings().pipelines)
        registry = registry_of(settings().registry)
        for definition in loaded.pipelines:
            comparisons = [*compare(plan(definition).job, registry)]
            note_comparisons(definition.name, comparisons)
            for each in comparisons:
                reads = "reads" if each.topic.is_read else "writes"
                version = f", version {each.version}" if each.version else ""
                place = f"{definition.name} {reads} {each.topic.topic} ({each.topic.subject}"
                detail = f": {each.detail}" if each.detail else ""
                out.print(
                    f"{each.verdict:8}{place}{version}){detail}", markup=False, soft_wrap=True
                )
                status = max(status, each.verdict != "right")
    raise typer.Exit(int(status))


def note_comparisons(pipeline: str, comparisons: Sequence[Comparison]) -> None:
    """Record for the page which schemas do not fit, if the ledger knows the pipeline.

    A machine that only checks the files of pipelines need not reach the ledger.
    """
    from sluice.errors import StateError
    from sluice.operations.registered_topics import note
    from sluice.state.ledger.ledger import Ledger

    if not comparisons:
        return
    try:
        with Ledger.open(settings().ledger) as ledger:
            if ledger.generations.current(pipeline) is not None:
                note(ledger, pipeline, comparisons)
    except StateError as error:
        out.print(f"warning: the page does not show the result: {error}", markup=False)


@app.command()
def push(pipeline: PipelineName) -> None:
    """Register the schemas of the topics that a pipeline writes in Avro.

    A topic that is written with a certain version of its subject, or with a pulled schema, is left
    out.
    """
    from sluice.operations.registered_topics import push as register
    from sluice.plan import plan
    from sluice.registry.opening import registry_of

    with errors_as_messages():
        job = plan(load(pipeline)).job
        for topic, schema in register(job, registry_of(settings().registry)):
            out.print(f"{topic.topic}: {schema}", markup=False, soft_wrap=True)
