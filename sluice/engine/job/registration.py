"""What a job tells the ledger of itself before its first batch: stores, workers, topics, picture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sluice.engine.batch.storage import Storage
from sluice.engine.job.dataframes import Frames
from sluice.errors import TopologyError
from sluice.plan import Job
from sluice.state.model import JobInfo, StoreInfo, WorkerInfo
from sluice.topology import drawing, nodes
from sluice.topology.fingerprint import fingerprint
from sluice.topology.serdes import fields_of
from sluice.values.records import TEXT_FIELD


def job_info(storage: Storage, frames: Frames) -> JobInfo:
    """The job as readers will see it. Its `frames` are made, and know the types of everything."""
    job, types = storage.job, frames.types
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
            *_group_stores(job, types, frames.kept),
            *_ordered_stores(job, types),
            *_processor_stores(job),
            *_table_stores(job),
        ),
        topics=job.topics,
        operators=dict(_operators(job, frames.kept)),
        functions=dict(_functions(job)),
        description=drawing.text(pipeline),
        drawing=drawing.mermaid(pipeline),
        picture=drawing.svg(pipeline),
    )


def _group_stores(job: Job, types: Mapping[str, str], kept: Mapping[int, str]) -> Iterator[StoreInfo]:
    for group in job.groups:
        for number, store_column in enumerate(group.store_columns):
            yield StoreInfo(
                pipeline=job.pipeline.name,
                job=job.name,
                name=store_column.store,
                kind="window" if group.window else "key-value",
                group_id=group.number,
                store_column=number,
                key=group.at.key,
                window_ms=group.window.size_ms if group.window else None,
                grace_ms=group.window.grace_ms if group.window else None,
                retention_ms=group.at.retention_ms,
                value=types[store_column.store],
                made=f"{_made(group.at)} > {', '.join(map(' = '.join, store_column.columns))} of {kept[group.number]}",
            )


def _made(node: nodes.Node) -> str:
    """The steps before an operator, in the author's words; of a contract only the fields that are used matter."""
    steps = [*_ancestors(node)]
    texts = " ".join(drawing.detail(step) for step in (*steps, node) if not isinstance(step, nodes.Source))
    return " > ".join(
        _source(step, texts) if isinstance(step, nodes.Source) else _step(step)
        for step in steps
        if not (isinstance(step, nodes.Apply) and step.gives == "nothing")  # a peek changes no result
    )


def _source(source: nodes.Source, texts: str) -> str:
    """What a topic's records are to the expressions in `texts`."""
    kind = source.kind.replace("_", " ")
    key = f"key {source.key or ('decoded' if source.key_decode else 'of the record')}"
    time = f"event time {source.event_time or 'of the record'} {source.zone}"
    if source.on_time == "clock":
        time += ", or that of processing"
    nulls = ["nulls kept"] if source.nulls == "keep" else []
    used = [
        f"{name} {sql}"
        for name, sql in source.fields.items()
        if name in (source.key, source.event_time) or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", texts)
    ]
    return ", ".join([f"{kind} {source.topic}", key, time, *nulls, *used])


def _step(node: nodes.Node) -> str:
    types = ""
    match node:
        case nodes.Apply(takes=takes, fields=fields):
            types = f"({_declared(takes)}) gives {', '.join(f'{name} {sql}' for name, sql in fields.items())}"
        case nodes.Process(takes=takes, stores=stores, queryable=queryable):
            # Stores that can be queried are compared by themselves.
            kept = {} if queryable else stores
            types = f"({_declared(takes)}) {', '.join(f'{name} {_declared(kind)}' for name, (kind, _) in kept.items())}"
    return " ".join(one.strip() for one in (drawing.title(node), drawing.detail(node), types) if one)


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
                group_id=operator.number,
                store_column=0,
                key=getattr(operator.node, "key", "_key"),
                window_ms=window.size_ms if window else None,
                grace_ms=window.grace_ms if window else None,
                retention_ms=getattr(operator.node, "retention_ms", None),
                value=types[operator.store],
                made=f"{_made(operator.node)} > {_step(operator.node)}",
            )


def _processor_stores(job: Job) -> Iterator[StoreInfo]:
    for operator in job.operators:
        node = operator.node
        for name, group_id in operator.entries.items():
            assert isinstance(node, nodes.Process)
            yield StoreInfo(
                pipeline=job.pipeline.name,
                job=job.name,
                name=name,
                kind="key-value",
                group_id=group_id,
                store_column=0,
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


def _operators(job: Job, kept: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """Every ordered operator: its states are found by its number, and mean what the steps before it make of them."""
    for operator in job.operators:
        node = operator.node
        what = f"number {operator.number} > {_made(node)} > {_step(node)} > of {kept[operator.number]}"
        # What was not published before cannot be queried now.
        yield operator.name, what if getattr(node, "queryable", True) else f"{what} > not queryable"


def _functions(job: Job) -> Iterator[tuple[str, str]]:
    """The author's functions that the job's state depends on, each with the hash of its code."""
    stateful = [group.at for group in job.groups] + [operator.node for operator in job.operators]
    steps = dict.fromkeys(step for node in stateful for step in (*_ancestors(node), node))
    seen: dict[str, int] = {}
    for step in steps:
        for function in _functions_of(step):
            name = f"{getattr(function, '__qualname__', type(function).__qualname__)} ({drawing.title(step)})"
            seen[name] = seen.get(name, 0) + 1
            yield name if seen[name] == 1 else f"{name} {seen[name]}", fingerprint(function)


def _functions_of(node: nodes.Node) -> Iterator[Callable[..., Any]]:
    found: tuple[Callable[..., Any] | None, ...] = ()
    match node:
        case nodes.Source(serde=serde, key_decode=key_decode):
            found = (serde.decode, key_decode)
        case nodes.Apply(function=function, gives=gives) if gives != "nothing":
            found = (function,)
        case nodes.Transform(function=function):
            found = (function,)
        case nodes.Aggregate(python=nodes.PythonAggregate() as python):
            found = (python.initializer, python.adder, python.subtractor, python.merger)
        case nodes.Process(processor=processor):
            found = (processor,)
    yield from dict.fromkeys(one for one in found if one is not None)


def _table_stores(job: Job) -> Iterator[StoreInfo]:
    for table in job.tables:
        fields = ",".join(f"{name}:{kind.lower()}" for name, kind in table.source.fields.items())
        yield StoreInfo(
            pipeline=job.pipeline.name,
            job=job.name,
            name=table.source.topic,
            kind="global",
            group_id=table.group,
            store_column=0,
            key=table.source.key or "_key",
            value=f"struct<{fields}>",
        )
