"""Builds a generation's entry in the ledger: stores, workers, topics, drawing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from sluice.engine.batch.storage import Storage
from sluice.engine.run.compatibility import IN_ANY_ORDER
from sluice.plan import Job
from sluice.plan.operator_parameters import Call, Process, TableLookup
from sluice.state.model import GenerationInfo, StoreInfo, WorkerInfo
from sluice.values.sql_types import compact


class KnownTypes(Protocol):
    """The types of stores and of their inputs: those of a run, or others in their place."""

    @property
    def stores(self) -> Mapping[str, str]:
        """Store → the type of its values."""

    @property
    def inputs(self) -> Mapping[int, str]:
        """Number of the step of a store or operator → the types of its inputs."""


def generation_info(storage: Storage, types: KnownTypes) -> GenerationInfo:
    """The generation's description for readers."""
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
        description=pipeline.text,
        picture=pipeline.svg,
        file=str(pipeline.file or ""),
    )


def _outputs(job: Job) -> dict[str, dict[str, str]]:
    outputs: dict[str, dict[str, str]] = {}
    for sink in job.sinks:
        outputs[sink.topic] = {**job.pipeline.output_fields.get(sink.topic, {})}
    return outputs


def _group_stores(job: Job, types: KnownTypes) -> Iterator[StoreInfo]:
    for group in job.groups:
        for number, store_column in enumerate(group.store_columns):
            inputs = types.inputs[store_column.step]
            yield StoreInfo(
                pipeline=job.pipeline.name,
                name=store_column.store,
                kind="window" if group.window else "key-value",
                group_id=group.number,
                store_column=number,
                key=group.grouped_by,
                windows=str(group.window) if group.window else None,
                window_ms=group.window.size_ms if group.window else None,
                grace_ms=group.window.grace_ms if group.window else None,
                retention_ms=group.retention_ms,
                value=types.stores[store_column.store],
                made=f"{store_column.definition} > of {inputs}{IN_ANY_ORDER}",
            )


def _operator_stores(job: Job, types: KnownTypes) -> Iterator[StoreInfo]:
    for operator in job.operators:
        if operator.store is not None:
            window = operator.window
            yield StoreInfo(
                pipeline=job.pipeline.name,
                name=operator.store,
                kind="window" if window else "key-value",
                group_id=operator.number,
                store_column=0,
                key=operator.grouped_by,
                windows=str(window) if window else None,
                window_ms=window.size_ms if window else None,
                grace_ms=window.grace_ms if window else None,
                retention_ms=operator.retention_ms,
                value=types.stores[operator.store],
                made=f"{operator.upstream_definition} > {operator.definition}",
            )


def _processor_stores(job: Job) -> Iterator[StoreInfo]:
    for operator in job.operators:
        for name, store in operator.stores.items():
            assert store.group_id is not None
            window = operator.window
            yield StoreInfo(
                pipeline=job.pipeline.name,
                name=name,
                kind="window" if window else "key-value",
                group_id=store.group_id,
                store_column=0,
                key="_key",
                windows=str(window) if window else None,
                window_ms=window.size_ms if window else None,
                grace_ms=window.grace_ms if window else None,
                value=store.sql_type,
                made=f"{operator.upstream_definition} > {operator.step.title}",
            )


def _operators(job: Job, types: KnownTypes) -> Iterator[tuple[str, str]]:
    """Each operator's name and its definition.

    The definition consists of the operator's number and of the steps that define the meaning of its
    states.
    """
    for operator in job.operators:
        # A call or a look-up keeps only recorded answers, and each answer says itself what was
        # asked. So the answers stay valid if the steps change, and need no definition.
        if isinstance(operator.action, Call | TableLookup):
            continue
        inputs = types.inputs[operator.number]
        definition = f"{operator.upstream_definition} > {operator.definition} > of {inputs}"
        made = f"number {operator.number} > {definition}"
        # A processor that becomes queryable needs a rebuild, because its
        # earlier changes were not published.
        if operator.reads_windows:
            made += " > windows in the aggregate"
        is_hidden = isinstance(operator.action, Process) and not operator.action.queryable
        yield operator.name, f"{made} > not queryable" if is_hidden else made


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
        )
