"""The task of the DAG `sluice_retention`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.errors import QueryError, RetentionFailed
from sluice.operations.snapshot_retention import retain
from sluice.orchestration import maintenance_dag
from sluice.settings import settings
from tests.support.states import States, ledger_url


def test_an_error_of_one_pipeline_does_not_keep_others_from_being_retained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ledger_url(f"sqlite:///{tmp_path}")
    for name in ("first", "second"):
        states = States(f"sqlite:///{tmp_path}/{name}", pipeline=name, ledger_at=ledger)
        for number in range(3):
            states.publish({"a": f"[{number}]"})
    monkeypatch.setenv("SLUICE_LEDGER", ledger)
    settings.cache_clear()
    monkeypatch.setattr(maintenance_dag, "_begin_offsets", lambda _: {})

    def failing(of_ledger: Any, pipeline: str, *options: Any) -> Any:
        if pipeline == "first":
            raise QueryError("It cannot be read.")
        return retain(of_ledger, pipeline, *options)

    monkeypatch.setattr(maintenance_dag, "retain", failing)
    with pytest.raises(RetentionFailed, match=r"first: It cannot be read\."):
        maintenance_dag.retain_all({"keep_snapshots": 1, "keep_hours": 0})
    snapshots = states.ledger.snapshots
    assert [len(snapshots.recent(name)) for name in ("first", "second")] == [3, 1]
    (failure,) = states.ledger.failures.all()
    assert (failure.pipeline, failure.kind, failure.detail) == (
        "first",
        "retention",
        "It cannot be read.",
    )

    monkeypatch.setattr(maintenance_dag, "retain", retain)
    maintenance_dag.retain_all({"keep_snapshots": 1, "keep_hours": 0})
    assert states.ledger.failures.all() == [], "the next run has retained it"
