"""What tasks are sent to write outputs at least once."""

from __future__ import annotations

from pathlib import Path

from pyspark import cloudpickle

from sluice.engine.publish.at_least_once import AtLeastOnce
from sluice.plan import plan
from sluice.topology import load_pipeline

PIPELINES = Path(__file__).parents[2] / "spark_jobs"


def test_a_pipelines_own_module_is_not_needed_where_nothing_of_it_is() -> None:
    (job,) = plan(load_pipeline(PIPELINES, "orders")).jobs
    sent = AtLeastOnce.of(job, {}, "at_least_once", dict.fromkeys(job.outputs, 1_000))
    assert sent is not None
    assert sent.streams.keys() == {"general_orders", "restaurant_orders"}
    # A worker of another machine knows the module by its file only, and would not find it by this name.
    assert b"sluice-pipeline:" not in cloudpickle.dumps(sent)  # type: ignore[no-untyped-call]
