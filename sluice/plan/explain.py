"""Describe a plan as text."""

from __future__ import annotations

from sluice.plan.jobs import Job, Plan
from sluice.plan.ordered import why_ordered
from sluice.topology import drawing


def _what(job: Job) -> str:
    if job.groups:
        return f"{len(job.groups)} aggregation groups in one stateful operator"
    if not job.operators:
        return "no state"
    return f"{len(job.operators)} ordered operators in {job.stages} stage{'s' if job.stages > 1 else ''}"


def explain(plan: Plan) -> str:
    """The jobs as text: what each reads, stores and writes, and why its operators are ordered."""
    jobs = f"{len(plan.jobs)} job{'s' if len(plan.jobs) > 1 else ''}"
    lines = [f"pipeline {plan.pipeline.name}: {jobs}, {plan.pipeline.workers} workers"]
    for job in plan.jobs:
        lines.append(f"job {job.name}: one streaming query, {_what(job)}")
        lines += [f"  reads   {source.topic} as {source.serde.name}" for source in job.streams]
        lines += [f"  reads   {table.source.topic} as a global table, on every worker" for table in job.tables]
        for group in job.groups:
            window = f", {group.window}" if group.window else ""
            window += f", kept {kept} ms after its end" if (kept := group.at.retention_ms) is not None else ""
            stores = ", ".join(column.store for column in group.store_columns)
            lines.append(f"  holds   by {group.at.key}{window}: {stores}")
        for operator in job.operators:
            why = why_ordered(plan.pipeline, operator.node)
            steps = f"{drawing.title(operator.node)} {drawing.detail(operator.node)}".strip()
            lines.append(f"  stage {operator.stage} {steps}: {why}")
            if operator.entries:
                lines.append(f"  holds   by key: {', '.join(operator.entries)}")
        lines += [f"  writes  {topic}" for topic in (*job.outputs, plan.pipeline.dead_letters)]
    return "\n".join(lines)
