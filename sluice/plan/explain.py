"""A plan in words."""

from __future__ import annotations

from sluice.plan.jobs import Plan


def explain(plan: Plan) -> str:
    """The jobs in words: what each reads, holds and writes, and why it is a job."""
    lines = [f"pipeline {plan.pipeline.name}: {len(plan.jobs)} job, {plan.pipeline.workers} workers"]
    for job in plan.jobs:
        lines.append(f"job {job.name}: one streaming query, {len(job.families)} cell families in one stateful operator")
        lines += [f"  reads   {source.topic} as {source.serde.contract.__name__}" for source in job.streams]
        lines += [f"  reads   {table.source.topic} as a global table, on every worker" for table in job.tables]
        for family in job.families:
            window = f", {family.window}" if family.window else ""
            lines.append(f"  holds   by {family.at.key}{window}: {', '.join(slot.store for slot in family.slots)}")
        lines += [f"  writes  {topic}" for topic in (*job.outputs, plan.pipeline.dead_letters)]
    return "\n".join(lines)
