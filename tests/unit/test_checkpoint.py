"""A checkpoint's files are complete or absent, whatever interrupts a driver that writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice import Pipeline
from sluice.engine.batch.checkpoint import batch_positions, copy_identity, last_batch
from sluice.engine.batch.storage import Storage
from sluice.engine.job.replay import log_batch
from sluice.engine.job.run import query_errors
from sluice.errors import EngineError, LeaseError
from sluice.plan import plan
from sluice.settings import Settings
from tests.full_disks import limited

PATTERN = ["v1", json.dumps({"batchTimestampMs": 1, "conf": {}}), json.dumps({"sales": {"0": 1}})]
IDENTITY = json.dumps({"id": "98191ff1-f4ef-4af5-8fa0-0cb60640ad04"})


def test_half_a_log_of_a_batch_is_not_a_log(tmp_path: Path) -> None:
    checkpoint = str(tmp_path)
    ends = {"sales": {"0": 7}}
    with pytest.raises(OSError, match="File too large"), limited(10):
        log_batch(checkpoint, 0, ends, 5, PATTERN)
    assert last_batch(checkpoint, "offsets") == -1
    log_batch(checkpoint, 0, ends, 5, PATTERN)
    assert batch_positions(checkpoint, 0) == ends
    assert [file.name for file in (tmp_path / "offsets").iterdir()] == ["0"]
    with pytest.raises(LeaseError, match="Another driver has begun batch 0"):
        log_batch(checkpoint, 0, ends, 5, PATTERN)


def test_half_an_identity_of_a_query_is_not_an_identity(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "metadata").write_text(IDENTITY)
    with pytest.raises(OSError, match="File too large"), limited(10):
        copy_identity(str(source), str(target))
    assert not (target / "metadata").exists()
    copy_identity(str(source), str(target))
    assert [(file.name, file.read_text()) for file in target.iterdir()] == [("metadata", IDENTITY)]


def test_a_full_disk_ends_a_run_with_the_folder_and_a_next_step(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    pipeline.stream("sales", value=str).to("out")
    storage = Storage.of(plan(pipeline).job, 1, Settings.read({"SLUICE_HOME": str(tmp_path)}))
    nothing: Any = None
    message = f"p cannot read or write {storage.folder}: .*File too large"
    with pytest.raises(EngineError, match=message) as error, query_errors(nothing, storage, nothing), limited(10):
        (tmp_path / "large").write_bytes(b"x" * 100)
    assert "free space" in error.value.next_step
