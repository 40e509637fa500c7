"""What an author and Airflow import stays light: a topology and its plan load neither Spark, Airflow nor Kafka."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"airflow", "confluent_kafka", "fastapi", "numpy", "pandas", "pyarrow", "pyspark", "sqlalchemy"}

ALLOWED: dict[str, set[str]] = {
    "sluice": set(),
    "sluice.errors": set(),
    "sluice.settings": set(),
    "sluice.topology": set(),
    "sluice.topology.drawing": set(),
    "sluice.plan": set(),
    "sluice.state.model": set(),
    "sluice.state.ledger": {"sqlalchemy"},
    "sluice.query": {"sqlalchemy"},
    "sluice.samples": {"confluent_kafka"},
    "sluice.testing.kafka": {"confluent_kafka"},
}


@pytest.mark.parametrize("module", ALLOWED)
def test_a_module_brings_no_more_than_it_may(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}} & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= ALLOWED[module]


def test_imports_go_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
