"""The helper process that imports pipelines' files, each in a child that it forks."""

from __future__ import annotations

import sys
from pathlib import Path

from sluice.topology.loading.isolated_imports import Outcome, import_isolated


def imported_parser(file: Path, seconds: float) -> str:
    return str({"sqlglot", "sluice.sql.expression_checks"} <= sys.modules.keys())


def test_a_child_need_not_import_the_parser_of_sql(tmp_path: Path) -> None:
    """Otherwise, each of the children would spend more time on it than on its pipeline."""
    files = [tmp_path / "first.py", tmp_path / "second.py"]
    assert import_isolated(files, load=imported_parser) == dict.fromkeys(files, Outcome("True"))
