"""The pipeline of the page about names and times can be loaded, and its advice is true."""

from __future__ import annotations

from pathlib import Path

from sluice.plan import plan
from sluice.topology import load_pipeline
from tests.docs.pages import read, write_files


def test_the_page_is_a_pipeline(tmp_path: Path) -> None:
    write_files(read("docs/how-to/names-and-times.md"), tmp_path)
    pipeline = load_pipeline(tmp_path / "pipelines", "parcels")
    (source,) = plan(pipeline).job.streams
    assert source.types["due"] == "TIMESTAMP"
    assert source.types["packed"] == "BIGINT"
