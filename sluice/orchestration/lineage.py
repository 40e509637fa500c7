"""The lineage of a run for OpenLineage: the datasets that the run reads and writes, and its audit.

Only the methods that Airflow's OpenLineage provider calls import this module, because the provider
is optional.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

import attrs
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    column_lineage_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)
from openlineage.client.naming.dataset import Kafka, Postgres

from sluice.observe.monitoring import run_audits
from sluice.plan import Job, plan
from sluice.plan.column_origins import Origin, column_origins
from sluice.settings import Settings
from sluice.state.ledger.audits import Audit, total
from sluice.state.ledger.ledger import Ledger
from sluice.support.masking import without_log_in
from sluice.topology import load_pipeline
from sluice.values.pipeline_modules import libraries_forgotten
from sluice.values.sink_tables import DeltaTable, PostgresTable
from sluice.values.topic_patterns import named_or_matching

Lineage: TypeAlias = OperatorLineage[Dataset, RunFacet]

_FACET = "sluice_audit"
"""The name of the run facet with the audit."""
_READ = ("run", "replay", "promote", "roll_back")
"""The actions that read the pipeline's topics."""
_PUBLISHED = ("run", "promote", "roll_back")
"""The actions after which queries and consumers see new results. A replay only builds a generation
beside the current generation."""


@attrs.define(kw_only=True)
class AuditRunFacet(RunFacet):
    """The sums of the audits of a run's published snapshots, as in `sluice audit`."""

    generation: int
    firstSnapshot: str
    lastSnapshot: str
    recordsRead: int
    recordsApplied: int
    recordsFiltered: int
    recordsLate: int
    recordsDropped: dict[str, int]
    """Reason → number of records."""
    deadLetters: dict[str, int]
    """Reason → number of records that were rejected when they were read."""
    recordsWritten: dict[str, int]
    """Topic → number of records."""
    balanced: bool
    """Whether every record that was read is accounted for."""


def lineage(
    pipeline: str,
    action: object,
    run: str,
    kafka: Mapping[str, str],
    configuration: Settings,
    databases: Mapping[str, str],
) -> Lineage:
    """Return the datasets of a run with this action, and the facet with its audit.

    The facet exists once the run has published a snapshot. `databases` are the URLs, by connection,
    of the databases whose tables the pipeline writes.

    Raises TopologyError if the pipeline cannot be loaded.
    """
    with libraries_forgotten():
        loaded = load_pipeline(configuration.pipelines, pipeline)
    job = plan(loaded).job
    with Ledger.open(configuration.ledger) as ledger:
        audits = run_audits(ledger, pipeline, run)
    return OperatorLineage(
        inputs=_inputs(job, kafka, audits) if action in _READ else [],
        outputs=_outputs(
            job, column_origins(loaded), kafka, configuration.ledger, databases, audits
        )
        if action in _PUBLISHED
        else [],
        run_facets={_FACET: _facet(audits)} if audits else {},
    )


def _inputs(job: Job, kafka: Mapping[str, str], audits: list[Audit]) -> list[Dataset]:
    read = Counter[str]()
    for source in total(audits):
        read[source.topic] += source.read
    facet = input_statistics_input_dataset.InputStatisticsInputDatasetFacet
    inputs: list[Dataset] = []
    # The job may have a pattern in place of topics. The audits name the topics that match it.
    for topic in named_or_matching(job.topics, read):
        # Before the run has published anything, the numbers are unknown rather than zero.
        facets: dict[str, InputDatasetFacet] = {}
        if audits:
            facets["inputStatistics"] = facet(rowCount=read[topic])
        fields = job.pipeline.contracts.get(topic, {})
        inputs.append(
            InputDataset(*_topic(kafka, topic), facets=_schema(fields), inputFacets=facets)
        )
    return inputs


def _schema(fields: Mapping[str, str]) -> dict[str, DatasetFacet]:
    """Return the facet with the fields of values and their types; none if there are no fields."""
    if not fields:
        return {}
    facet = schema_dataset.SchemaDatasetFacetFields
    described = [facet(name=name, type=kind or None) for name, kind in fields.items()]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=described)}


def _column_lineage(
    origins: Mapping[str, Sequence[Origin]], kafka: Mapping[str, str]
) -> dict[str, DatasetFacet]:
    """Return the facet with the fields of topics from which each field is computed."""
    fields: dict[str, column_lineage_dataset.Fields] = {}
    for name, read in origins.items():
        inputs: list[column_lineage_dataset.InputField] = []
        for topic, field in read:
            namespace, dataset = _topic(kafka, topic)
            inputs.append(column_lineage_dataset.InputField(namespace, dataset, field))
        fields[name] = column_lineage_dataset.Fields(inputFields=inputs)
    if not fields:
        return {}
    return {"columnLineage": column_lineage_dataset.ColumnLineageDatasetFacet(fields=fields)}


def _outputs(
    job: Job,
    origins: Mapping[str, Mapping[str, Sequence[Origin]]],
    kafka: Mapping[str, str],
    ledger: str,
    databases: Mapping[str, str],
    audits: list[Audit],
) -> list[Dataset]:
    written = _written(audits)
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
    names = {topic: _topic(kafka, topic) for topic in (*job.outputs, job.pipeline.dead_letters)}
    for sink in job.sinks:
        match sink.table:
            # If the URL of its database is missing, a table has no name in OpenLineage.
            case PostgresTable(name=table, connection=connection) if connection in databases:
                names[sink.topic] = _table(databases[connection], table)
            case DeltaTable(name=location):
                names[sink.topic] = _folder(location)
    outputs: list[Dataset] = []
    for output, name in names.items():
        output_facets: dict[str, OutputDatasetFacet] = {}
        if audits:
            output_facets["outputStatistics"] = statistics(rowCount=written[output])
        described = _schema(job.pipeline.output_fields.get(output, {}))
        described |= _column_lineage(origins.get(output, {}), kafka)
        outputs.append(OutputDataset(*name, facets=described, outputFacets=output_facets))
    version = dataset_version_dataset.DatasetVersionDatasetFacet
    for store in job.stores:
        facets: dict[str, DatasetFacet] = {}
        if audits:
            facets["version"] = version(datasetVersion=_snapshot(audits[-1]))
        outputs.append(
            OutputDataset(store_namespace(ledger), f"{job.pipeline.name}.{store}", facets=facets)
        )
    return outputs


def store_namespace(ledger: str) -> str:
    """Return the namespace of the stores whose ledger has this URL.

    It is `sluice://HOST:PORT/DATABASE` or `sluice:///FILE`.
    """
    # The namespace must not show the user and the password of the database.
    server, _, database = without_log_in(ledger).partition("/")
    return f"sluice://{server}/{database.lstrip('/')}"


def _topic(kafka: Mapping[str, str], topic: str) -> tuple[str, str]:
    """Return the namespace and name of a topic.

    OpenLineage identifies a cluster by its first bootstrap server.
    """
    server = kafka["bootstrap.servers"].split(",")[0].strip().rpartition("//")[2]
    host, _, port = server.rpartition(":")
    name = Kafka(host or server, port if host else "9092", topic)
    return name.get_namespace(), name.get_name()


def _table(database: str, table: str) -> tuple[str, str]:
    """Return a PostgreSQL table's namespace and name; a table without a schema is in `public`."""
    url = urlsplit(f"//{without_log_in(database)}")
    schema, _, name = table.rpartition(".")
    named = Postgres(
        url.hostname or "localhost",
        str(url.port or 5432),
        url.path[1:] or "-",
        schema or "public",
        name,
    )
    return named.get_namespace(), named.get_name()


def _folder(location: str) -> tuple[str, str]:
    """Return the namespace and name of a folder, according to OpenLineage's naming rules."""
    url = urlsplit(location)
    if url.scheme in ("", "file"):
        return "file", url.path
    # Spark calls the scheme s3a, and OpenLineage calls it s3.
    return f"{url.scheme.replace('s3a', 's3')}://{url.netloc}", url.path.strip("/")


def _facet(audits: list[Audit]) -> AuditRunFacet:
    sources = total(audits)
    dropped, rejected = Counter[str](), Counter[str]()
    for source in sources:
        dropped.update(source.dropped)
        rejected.update(source.dead_letters)
    return AuditRunFacet(
        generation=audits[-1].generation,
        firstSnapshot=_snapshot(audits[0]),
        lastSnapshot=_snapshot(audits[-1]),
        recordsRead=sum(source.read for source in sources),
        recordsApplied=sum(source.applied for source in sources),
        recordsFiltered=sum(source.filtered for source in sources),
        recordsLate=sum(source.late for source in sources),
        recordsDropped=dict(dropped),
        deadLetters=dict(rejected),
        recordsWritten=dict(_written(audits)),
        balanced=not any(audit.wrong for audit in audits),
    )


def _written(audits: list[Audit]) -> Counter[str]:
    written = Counter[str]()
    for audit in audits:
        written.update(audit.outputs)
    return written


def _snapshot(audit: Audit) -> str:
    return f"{audit.generation}.{audit.batch}"
