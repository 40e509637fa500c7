"""The page about public programs counts the pipelines of `tests/acceptance`."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, read

ACCEPTANCE = ROOT / "tests" / "acceptance"
_COUNTED = re.compile(r"\| (\d+), in `([\w/.]+)` \|")
_PIPELINE = re.compile(r"^def (?:test_|q\d)", re.MULTILINE)


def test_the_page_counts_the_pipelines_of_every_file() -> None:
    counted = {file: int(number) for number, file in _COUNTED.findall(read("docs/programs.md"))}
    files = [*ACCEPTANCE.glob("test_*.py"), ACCEPTANCE / "nexmark" / "queries.py"]
    pipelines = {
        f"{path.relative_to(ACCEPTANCE)}": len(_PIPELINE.findall(path.read_text()))
        for path in files
    }
    assert counted == pipelines
    assert sum(counted.values()) >= 60
