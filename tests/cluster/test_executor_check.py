"""`sluice check --master` on a standalone cluster: what it says if all is well, and if something is not."""

from __future__ import annotations

import socket
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.standalone import SparkCluster
from tests.faults.world import World, world
from tests.support.ports import free_port
from tests.support.postgres import new_database

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


@pytest.fixture
def words(cluster: SparkCluster, python: Path, postgres: str) -> Iterator[World]:
    database = new_database(postgres)
    environment = {
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SLUICE_LEDGER": database,
        "SLUICE_SHARDS": database,
    }
    with world("words", environment, cluster.master) as opened:
        yield opened


def rows(output: str) -> dict[tuple[str, str], str]:
    """Where and what was checked → the result, from the table in the driver's output."""
    table: dict[tuple[str, str], str] = {}
    lines = output[output.index("executors of spark://") :].splitlines()
    for line in lines[2:]:
        match line.replace("state servers", "state-servers").split(maxsplit=3):
            case [where, check, ("ok" | "differs" | "failed") as result, *_]:
                table[where, check] = result
    return table


def test_executors_have_what_a_run_needs(words: World) -> None:
    driver = words.run("--check-executors")
    host = socket.gethostname()
    checks = ["Kafka", "Python", "Sluice", "clock", "packages", "shards"]
    assert rows(driver.output) == {
        ("driver", "ledger"): "ok",
        ("driver", "shards"): "ok",
        **{(host, check): "ok" for check in checks},
    }
    assert "8 checks passed" in driver.output


def test_a_python_without_packages_is_named_in_one_table(words: World, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    driver = words.run(
        "--check-executors", expect=1, PYSPARK_PYTHON=str(tmp_path / "bare" / "bin" / "python")
    )
    result = rows(driver.output)
    host = socket.gethostname()
    assert result[host, "packages"] == result[host, "Sluice"] == "failed"
    assert result[host, "clock"] == "ok"
    assert "msgspec" in driver.output
    assert "Traceback" not in driver.output


def test_shards_that_executors_do_not_reach_are_named(words: World) -> None:
    nowhere = f"postgresql://sluice:hunter2@127.0.0.1:{free_port()}/shards"
    driver = words.run("--check-executors", expect=1, SLUICE_SHARDS=nowhere)
    assert rows(driver.output)[socket.gethostname(), "shards"] == "failed"
    assert "hunter2" not in driver.output
