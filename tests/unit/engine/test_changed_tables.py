"""A table is computed again if a new step needs old values that the table has not kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct

from sluice import Pipeline
from sluice.engine.batch.storage import Storage
from sluice.engine.run.compatibility import StoreChanges, is_compatible
from sluice.engine.run.registration import generation_info
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.model import GenerationInfo
from sluice.testing.local_run import local_query
from sluice.topology.tables import Table

pytestmark = pytest.mark.unit


class Customer(Struct):
    shop: str


def customers() -> tuple[Pipeline, Table[Customer]]:
    pipeline = Pipeline("shops", workers=1)
    return pipeline, pipeline.table("customers", value=Customer)


def info_of(pipeline: Pipeline, home: Path) -> GenerationInfo:
    job, settings = plan(pipeline).job, Settings.read({"SLUICE_HOME": str(home)})
    return generation_info(Storage.of(job, 1, settings), local_query(job, settings, {}).types)


def test_a_table_is_computed_again_only_for_a_step_that_needs_old_values(tmp_path: Path) -> None:
    pipeline, _ = customers()
    before = info_of(pipeline, tmp_path)
    copied, table = customers()
    table.to("copy")
    assert is_compatible(before, info_of(copied, tmp_path))
    grouped, table = customers()
    table.group_by("shop").count(store="per_shop")
    now = info_of(grouped, tmp_path)
    assert StoreChanges.between(before, now, {}).added == {"customers", "per_shop"}
    assert StoreChanges.between(now, now, {}).added == frozenset()
