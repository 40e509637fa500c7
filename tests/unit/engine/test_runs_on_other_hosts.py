"""Rules for runs whose tasks are on other hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkFiles

from sluice.engine.run.job_run import require_reachable
from sluice.engine.steps.pickling import local
from sluice.errors import SettingsError

pytestmark = pytest.mark.unit

POSTGRES = "postgresql://sluice:hidden-word@host/shards?schema=sluice_orders_main_g1_w0"
SERVER = "http://host:7070/local/orders/1/0"
FILE = "sqlite:////var/lib/sluice/shards/orders/g1/worker-1.sqlite"


@pytest.mark.parametrize(
    ("master", "locations"),
    [("local[2]", [FILE]), ("spark://host:7077", [POSTGRES, SERVER]), ("yarn", [SERVER])],
)
def test_shards_that_executors_can_open(master: str, locations: list[str]) -> None:
    require_reachable(master, locations)


@pytest.mark.parametrize("master", ["spark://host:7077", "local-cluster[2,1,1024]", "yarn"])
def test_a_sqlite_file_on_a_cluster_is_refused_with_the_next_step(master: str) -> None:
    with pytest.raises(SettingsError) as refused:
        require_reachable(master, [SERVER, FILE])
    assert FILE in refused.value.detail
    assert (
        refused.value.next_step
        == "Set SLUICE_SHARDS to a PostgreSQL database, or start a state server for each worker."
    )


def test_executors_use_the_drivers_version_of_the_pipelines_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = tmp_path / "orders.py"
    original.write_text("version = 'of this host'")
    assert local(str(original)) == original, "the driver"
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path / "userFiles"))
    assert local(str(original)) == original, "a task of a local master"
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(SparkFiles, "_root_directory", ".")
    assert local(str(original)) == work / "orders.py", "a task on an executor"
