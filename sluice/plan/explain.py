"""Describe a plan as text, for `sluice explain`."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.plan.arrow_support import why_spark
from sluice.plan.job import Job, Plan
from sluice.values.phrases import counted, duration_text
from sluice.values.sink_tables import DeltaTable


def explain(plan: Plan) -> str:
    """Describe what the job reads, stores and writes, and where its steps run.

    Also explain why operators need records in order.
    """
    job = plan.job
    lines = [
        f"pipeline {plan.pipeline.name}: {counted(plan.pipeline.workers, 'worker')}, "
        f"one streaming query with {_summary(job)}"
    ]
    for source in job.streams:
        topics = source.topic
        if source.pattern:
            topics += f", at most {counted(source.most_topics, 'topic')},"
        lines.append(f"  reads   {topics} as {source.contract_name}")
    for table in job.tables:
        lines.append(f"  reads   {table.source.topic} as a global table, on every worker")
    if why := why_spark(job):
        lines.append(f"  steps   by Spark SQL: {why}")
    else:
        lines.append("  steps   on Arrow, in the tasks that read")
    lines += [*_groups(job), *_operators(job)]
    for topic in (*job.outputs, plan.pipeline.dead_letters):
        lines.append(f"  writes  {topic}")
    for destination, sinks in job.written_tables.items():
        names: list[str] = []
        for sink in sinks:
            if sink.table is not None:
                names.append(sink.table.name)
        where = "in Delta Lake"
        if destination in job.connections:
            where = f"in the database of {destination}"
        lines.append(f"  writes  {', '.join(names)} {where}, in one transaction per batch")
    if any(isinstance(sink.table, DeltaTable) for sink in job.sinks):
        lines.append("  loads   the jars of Delta Lake")
    return "\n".join(lines)


def _summary(job: Job) -> str:
    parts = []
    if job.groups:
        parts.append(counted(len(job.groups), "aggregation group"))
    if job.operators:
        parts.append(
            f"{counted(len(job.operators), 'operator')} in {counted(job.stage_count, 'stage')}"
        )
    return " and ".join(parts) or "no state"


def _groups(job: Job) -> Iterator[str]:
    for group in job.groups:
        by = group.grouped_by
        if group.window:
            by += f", {group.window}"
        if group.retention_ms is not None:
            by += f", kept {duration_text(group.retention_ms)} after its end"
        yield f"  holds   by {by}: {', '.join(group.stores)}"


def _operators(job: Job) -> Iterator[str]:
    for operator in job.operators:
        step = f"{operator.step.title} {operator.step.detail}".strip()
        yield f"  stage {operator.stage} {step}: {operator.reason}"
        if operator.stores:
            key = "key"
            if operator.by_window:
                key = "key and window"
            yield f"  holds   by {key}: {', '.join(operator.stores)}"
