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
    sent = AtLeastOnce.of(
        job, {}, "at_least_once", dict.fromkeys(job.outputs, TopicLimits(size=1_000))
    )
    assert sent is not None
    assert sent.streams.keys() == {"general_orders", "restaurant_orders"}
    # An executor on another machine cannot import the module by this name.
    assert b"sluice-pipeline:" not in cloudpickle.dumps(sent)  # type: ignore[no-untyped-call]


def test_executors_do_not_need_the_files_of_certificates(tmp_path: Path) -> None:
    job = plan(load_pipeline(PIPELINES, "orders")).job
    (tmp_path / "key.pem").write_text("a secret key")
    kafka = {
        "ssl.key.location": str(tmp_path / "key.pem"),
        "ssl.ca.location": str(tmp_path / "missing.pem"),
    }
    sent = AtLeastOnce.of(job, kafka, "at_least_once", {})
    assert sent is not None
    assert sent.kafka == {
        "ssl.key.pem": "a secret key",
        "ssl.ca.location": str(tmp_path / "missing.pem"),
    }
    assert "a secret key" not in repr(sent)
