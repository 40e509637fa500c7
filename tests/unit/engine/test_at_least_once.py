"""The objects that tasks receive for writing at-least-once outputs."""

from __future__ import annotations

from pathlib import Path

from pyspark import cloudpickle

from sluice.engine.batch.job_topics import TopicLimits
from sluice.engine.publish.at_least_once import AtLeastOnce
from sluice.plan import plan
from sluice.topology import load_pipeline

PIPELINES = Path(__file__).parents[3] / "spark_jobs"


def test_executors_do_not_need_the_pipelines_module_unnecessarily() -> None:
    job = plan(load_pipeline(PIPELINES, "orders")).job
    sent = AtLeastOnce.of(job, {}, "at_least_once", dict.fromkeys(job.outputs, TopicLimits(size=1_000)))
    assert sent is not None
    assert sent.streams.keys() == {"general_orders", "restaurant_orders"}
    # An executor on another machine cannot import the module by this name.
    assert b"sluice-pipeline:" not in cloudpickle.dumps(sent)  # type: ignore[no-untyped-call]
