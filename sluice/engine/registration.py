"""What a job tells the ledger of itself before its first batch: stores, workers, topics, picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.engine.storage import Storage
from sluice.errors import TopologyError
from sluice.plan import Job
from sluice.state.model import JobInfo, StoreInfo, WorkerInfo
from sluice.topology import drawing, nodes
from sluice.topology.serdes import TEXT_FIELD, fields_of


def job_info(storage: Storage, types: Mapping[str, str]) -> JobInfo:
    """The job as readers will see it. `types` has the Spark SQL type of each store's value."""
    job = storage.job
    pipeline = job.pipeline
    return JobInfo(
        pipeline=pipeline.name,
        job=job.name,
        generation=storage.generation,
        workers=tuple(
            WorkerInfo(pipeline=pipeline.name, job=job.name, number=number, location=place)
            for number, place in enumerate(storage.locations)
        ),
        stores=(
            *_family_stores(job, types),
            *_ordered_stores(job, types),
            *_processor_stores(job),
            *_table_stores(job),
        ),
        topics=job.topics,
        operators=dict(_operators(job)),
        description=drawing.text(pipeline),
        drawing=drawing.mermaid(pipeline),
        picture=drawing.svg(pipeline),
    )


def _family_stores(job: Job, types: Mapping[str, str]) -> Iterator[StoreInfo]:
    for family in job.families:
        for number, slot in enumerate(family.slots):
            yield StoreInfo(
                pipeline=job.pipeline.name,
                job=job.name,
                name=slot.store,
                kind="window" if family.window else "key-value",
                cell=family.number,
                slot=number,
                key=family.at.key,
                window_ms=family.window.size_ms if family.window else None,
                grace_ms=family.window.grace_ms if family.window else None,
                retention_ms=family.at.retention_ms,
                value=types[slot.store],
                made=f"{_made(family.at)} > {', '.join(' = '.join(column) for column in slot.columns)}",
            )


def _made(node: nodes.Node) -> str:
    """The steps before an aggregate, in the author's words; of a contract only the fields that are used matter."""
    return " > ".join(
        f"stream {one.topic}, event time {one.event_time} {one.zone}"
        if isinstance(one, nodes.Source)
        else f"{drawing.title(one)} {drawing.detail(one)}".strip()
        for one in _ancestors(node)
        if not (isinstance(one, nodes.Apply) and one.gives == "nothing")  # a peek changes no result
    )


def _ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    for parent in nodes.parents(node):
        yield from _ancestors(parent)
        yield parent


def _ordered_stores(job: Job, types: Mapping[str, str]) -> Iterator[StoreInfo]:
    for operator in job.operators:
        if operator.store is not None:
            window = nodes.window_of(operator.node)
            yield StoreInfo(
                pipeline=job.pipeline.name,
                job=job.name,
                name=operator.store,
                kind="window" if window else "key-value",
                cell=operator.number,
                slot=0,
                key=getattr(operator.node, "key", "_key"),
                window_ms=window.size_ms if window else None,
                grace_ms=window.grace_ms if window else None,
                retention_ms=getattr(operator.node, "retention_ms", None),
                value=types[operator.store],
                made=f"{_made(operator.node)} > {drawing.title(operator.node)} {drawing.detail(operator.node)}",
            )


def _processor_stores(job: Job) -> Iterator[StoreInfo]:
    for operator in job.operators:
        node = operator.node
        for name, cell in operator.entries.items():
            assert isinstance(node, nodes.Process)
            yield StoreInfo(
                pipeline=job.pipeline.name,
                job=job.name,
                name=name,
                kind="key-value",
                cell=cell,
                slot=0,
                key="_key",
                value=f"map<string,{_declared(node.stores[name][0])}>",
                made=f"{_made(node)} > {drawing.title(node)}",
            )


def _declared(kind: Any) -> str:
    """The type of a processor's values, as far as Spark SQL has one for it."""
    try:
        fields = {} if kind is Any else fields_of(kind)
    except TopologyError:
        fields = {}
    if list(fields) == [TEXT_FIELD]:
        return fields[TEXT_FIELD].lower() or "variant"
    return f"struct<{','.join(f'{name}:{one.lower()}' for name, one in fields.items())}>" if fields else "variant"


def _operators(job: Job) -> Iterator[tuple[str, str]]:
    """Every ordered operator: its states are found by its number, and mean what the steps before it make of them."""
    for operator in job.operators:
        node = operator.node
        what = f"{operator.number}: {_made(node)} > {drawing.title(node)} {drawing.detail(node)}"
        # What was not published before cannot be queried now.
        yield operator.name, what if getattr(node, "queryable", True) else f"{what}, not queryable"


def _table_stores(job: Job) -> Iterator[StoreInfo]:
    for table in job.tables:
        fields = ",".join(f"{name}:{kind.lower()}" for name, kind in table.source.fields.items())
        yield StoreInfo(
            pipeline=job.pipeline.name,
            job=job.name,
            name=table.source.topic,
            kind="global",
            cell=table.family,
            slot=0,
            key=table.source.key or "_key",
            value=f"struct<{fields}>",
        )
