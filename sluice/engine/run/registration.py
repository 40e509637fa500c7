"""Builds a generation's entry in the ledger: stores, workers, topics, drawing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from sluice.engine.batch.storage import Storage
from sluice.engine.run.compatibility import IN_ANY_ORDER
from sluice.plan import Job, Sink
from sluice.plan.operator_parameters import CallParameters, ProcessParameters, TableLookupParameters
from sluice.state.model import GenerationInfo, StoreInfo, WorkerInfo
from sluice.values.interfaces import FORMAT, KEY
from sluice.values.kept_headers import KEEPS_HEADERS
from sluice.values.registry_formats import RegistryFormat
from sluice.values.sql_types import compact
from sluice.values.windows import AnyWindow


class KnownTypes(Protocol):
    """The types of stores and of their inputs, either of a run or a stand-in."""

    @property
    def stores(self) -> Mapping[str, str]:
        """Store → the type of its values."""

    @property
    def inputs(self) -> Mapping[int, str]:
        """Number of the step of a store or operator → the types of its inputs."""


def generation_info(storage: Storage, types: KnownTypes) -> GenerationInfo:
    """Return the generation's description for readers."""
    job = storage.job
    pipeline = job.pipeline
    stores = (*_group_stores(job, types), *_operator_stores(job, types), *_processor_stores(job))
    name, generation = pipeline.name, storage.generation
    workers: list[WorkerInfo] = []
    for number, address in enumerate(storage.locations):
        worker = WorkerInfo(pipeline=name, generation=generation, number=number, location=address)
        workers.append(worker)
    return GenerationInfo(
        pipeline=name,
        generation=generation,
        workers=tuple(workers),
        stores=(*stores, *_table_stores(job)),
        topics=job.topics_and_patterns,
        operators=dict(_operators(job, types)),
        functions={name: function.fingerprint() for name, function in job.state_functions},
        contracts={topic: dict(fields) for topic, fields in pipeline.contracts.items()},
        outputs=_outputs(job),
        reads=stores_read_by(job),
        description=pipeline.text,
        picture=pipeline.svg,
        file=str(pipeline.file or ""),
    )


def _outputs(job: Job) -> dict[str, dict[str, str]]:
    outputs: dict[str, dict[str, str]] = {}
    for sink in job.sinks:
        outputs[sink.topic] = {**job.pipeline.output_fields.get(sink.topic, {})}
        if sink.table is None:
            outputs[sink.topic] |= {
                KEY: job.pipeline.output_keys.get(sink.topic, ""),
                FORMAT: _format_of(sink),
            }
    return outputs


def _format_of(sink: Sink) -> str:
    if sink.encode is None:
        return "JSON"
    if isinstance(sink.encode.value, RegistryFormat):
        return sink.encode.value.kind
    return "that of a serde"


def stores_read_by(job: Job) -> dict[str, dict[str, list[str]]]:
    """Return other pipeline → the stores that a job reads from it, with the types of values."""
    reads: dict[str, dict[str, list[str]]] = {}
    for store, kind in job.shared_stores:
        reads.setdefault(store.pipeline, {}).setdefault(store.store, []).append(kind)
    return reads


def _group_stores(job: Job, types: KnownTypes) -> Iterator[StoreInfo]:
    for group in job.groups:
        for number, store_column in enumerate(group.store_columns):
            inputs = types.inputs[store_column.step]
            yield StoreInfo(
                pipeline=job.pipeline.name,
                name=store_column.store,
                group_id=group.number,
                store_column=number,
                key=group.grouped_by,
                **_describe_windows(group.window),
                retention_ms=group.retention_ms,
                value=types.stores[store_column.store],
                made=f"{store_column.definition} > of {inputs}{IN_ANY_ORDER}",
            )


def _operator_stores(job: Job, types: KnownTypes) -> Iterator[StoreInfo]:
    for operator in job.operators:
        if operator.store is not None:
            yield StoreInfo(
                pipeline=job.pipeline.name,
                name=operator.store,
                group_id=operator.number,
                store_column=0,
                key=operator.grouped_by,
                **_describe_windows(operator.window),
                retention_ms=operator.retention_ms,
                value=types.stores[operator.store],
                made=f"{operator.upstream_definition} > {operator.definition}",
            )


def _processor_stores(job: Job) -> Iterator[StoreInfo]:
    for operator in job.operators:
        for name, store in operator.stores.items():
            assert store.group_id is not None
            ending = KEEPS_HEADERS if store.keeps_headers else ""
            yield StoreInfo(
                pipeline=job.pipeline.name,
                name=name,
                group_id=store.group_id,
                store_column=0,
                key="_key",
                **_describe_windows(operator.window),
                value=store.sql_type,
                made=f"{operator.upstream_definition} > {operator.step.title}{ending}",
            )


def _describe_windows(window: AnyWindow | None) -> dict[str, Any]:
    """Return the fields of a store's description that depend on its windows."""
    if window is None:
        return {"kind": "key-value", "windows": None, "window_ms": None, "grace_ms": None}
    return {
        "kind": "window",
        "windows": str(window),
        "window_ms": window.size_ms,
        "grace_ms": window.grace_ms,
    }


def _operators(job: Job, types: KnownTypes) -> Iterator[tuple[str, str]]:
    """Yield each operator's name and its definition.

    The definition consists of the operator's number and of the steps that define the meaning of its
    states.
    """
    for operator in job.operators:
        # The state of a call or a look-up has only recorded answers, and each answer is stored with
        # the input of its call. So the answers stay valid if the steps change, and the operator
        # needs no definition.
        if isinstance(operator.action, CallParameters | TableLookupParameters):
            continue
        inputs = types.inputs[operator.number]
        definition = f"{operator.upstream_definition} > {operator.definition} > of {inputs}"
        made = f"number {operator.number} > {definition}"
        if operator.reads_windows:
            made += " > windows in the aggregate"
        # A processor that becomes queryable needs a rebuild, because its
        # earlier changes were not published.
        if isinstance(operator.action, ProcessParameters) and not operator.action.queryable:
            made += " > not queryable"
        yield operator.name, made


def _table_stores(job: Job) -> Iterator[StoreInfo]:
    for table in job.tables:
        yield StoreInfo(
            pipeline=job.pipeline.name,
            name=table.store,
            kind="global",
            group_id=table.group,
            store_column=0,
            key=table.source.key or "_key",
            value=compact(table.value),
            made=KEEPS_HEADERS if table.keeps_headers else "",
        )
